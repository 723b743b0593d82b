// Shared by the parts of the RocksDB store: statuses, key ranges, iterators.
#ifndef STATCOLLECT_SERVER_STORE_ROCKSDB_UTIL_H_
#define STATCOLLECT_SERVER_STORE_ROCKSDB_UTIL_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include <rocksdb/db.h>

#include "common/status.h"
#include "server/store/run_reader.h"

namespace statcollect {

// The column families of statistics: blocks, and the sketches and samples of each under the same
// key.
struct StatFamilies {
  rocksdb::ColumnFamilyHandle* stats = nullptr;
  rocksdb::ColumnFamilyHandle* sketches = nullptr;
};

// Lack of space and of descriptors is kResourceExhausted: it passes, and so does what it made fail.
Status FromRocks(const std::string& attempted, const rocksdb::Status& status);
// Whether the process or the system had no descriptor left.
bool IsOutOfFiles(const rocksdb::Status& status);

inline std::string_view View(const rocksdb::Slice& slice) { return {slice.data(), slice.size()}; }

// Keys [begin, end). Iterators keep views of both, so a range must outlive them.
struct KeyRange {
  std::string begin, end;
  rocksdb::Slice end_slice;
  KeyRange(std::string b, std::string e) : begin(std::move(b)), end(std::move(e)), end_slice(end) {}
  KeyRange(const KeyRange&) = delete;
};

KeyRange RankRange(AttemptId attempt, std::uint32_t rank, StepBounds steps);

// `scan`: for large one-time reads, which must not evict cached blocks.
std::unique_ptr<rocksdb::Iterator> Iterate(rocksdb::DB& db, rocksdb::ColumnFamilyHandle* family,
                                           const KeyRange& range, bool scan = false);

}  // namespace statcollect

#endif  // STATCOLLECT_SERVER_STORE_ROCKSDB_UTIL_H_
