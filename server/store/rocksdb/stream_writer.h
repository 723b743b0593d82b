// Batches on their way into RocksDB: prepared by the streams' threads, written by Append.
#ifndef STATCOLLECT_SERVER_STORE_ROCKSDB_STREAM_WRITER_H_
#define STATCOLLECT_SERVER_STORE_ROCKSDB_STREAM_WRITER_H_

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "server/store/codec/stat_encoder.h"
#include "server/store/record_writer.h"
#include "server/store/rocksdb/families.h"

namespace statcollect {

inline constexpr std::uint8_t kCaptureDataVersion = 1;  // of a chunk's sealed data

// The batch as a StreamWriter prepared it: everything that is written except the rank's state.
class RocksPreparedBatch final : public PreparedBatch {
 public:
  struct Entry {
    Family family;
    std::string key, value;
  };
  std::vector<Entry> entries;
  std::vector<EncodedStatBlock> blocks;
};

class RocksStreamWriter final : public StreamWriter {
 public:
  RocksStreamWriter(AttemptId attempt, std::uint32_t rank, StatEncoder::Options options)
      : attempt_(attempt), rank_(rank), encoder_(attempt, rank, std::move(options)) {}

  std::unique_ptr<PreparedBatch> Prepare(const RecordBatch& records) override;

 private:
  const AttemptId attempt_;
  const std::uint32_t rank_;
  StatEncoder encoder_;
};

}  // namespace statcollect

#endif  // STATCOLLECT_SERVER_STORE_ROCKSDB_STREAM_WRITER_H_
