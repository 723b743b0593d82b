// Ends the recovery of logs at the first gap in their sequence numbers.
#ifndef STATCOLLECT_SERVER_STORE_ROCKSDB_LOG_GAP_FILTER_H_
#define STATCOLLECT_SERVER_STORE_ROCKSDB_LOG_GAP_FILTER_H_

#include <cstdint>
#include <functional>
#include <string>

#include <rocksdb/wal_filter.h>

namespace statcollect {

// Without syncs, a power cut may lose any part of any log: a page in its middle, or the end of a
// log that a newer log follows. RocksDB's point-in-time recovery stops at damage that it sees, but
// goes on behind zeros and behind a log that just ends early, and would recover watermarks without
// the records that they promise. Each batch begins with its first sequence number and counts its
// updates, so a gap shows. Used in one thread, while a database opens.
class LogGapFilter final : public rocksdb::WalFilter {
 public:
  // `log` gets one line if a gap is found.
  explicit LogGapFilter(std::function<void(const std::string&)> log) : log_(std::move(log)) {}

  const char* Name() const override { return "statcollect.LogGapFilter"; }
  WalProcessingOption LogRecordFound(unsigned long long log_number,
                                     const std::string& log_file_name,
                                     const rocksdb::WriteBatch& batch,
                                     rocksdb::WriteBatch* new_batch, bool* batch_changed) override;

 private:
  const std::function<void(const std::string&)> log_;
  std::uint64_t next_ = 0;  // the sequence number that must follow; 0: no batch was seen
};

}  // namespace statcollect

#endif  // STATCOLLECT_SERVER_STORE_ROCKSDB_LOG_GAP_FILTER_H_
