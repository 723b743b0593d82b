#include "server/store/rocksdb/log_gap_filter.h"

#include <cstddef>
#include <string>

#include <rocksdb/write_batch.h>

namespace statcollect {
namespace {

// A batch as RocksDB writes it: sequence number (8 bytes), count (4 bytes), both little-endian,
// then the updates.
constexpr std::size_t kBatchHeaderBytes = 12;

std::uint64_t FirstSequence(const std::string& batch) {
  std::uint64_t sequence = 0;
  for (int i = 7; i >= 0; --i)
    sequence = sequence << 8 | static_cast<unsigned char>(batch[static_cast<std::size_t>(i)]);
  return sequence;
}

}  // namespace

rocksdb::WalFilter::WalProcessingOption LogGapFilter::LogRecordFound(
    unsigned long long, const std::string& log_file_name, const rocksdb::WriteBatch& batch,
    rocksdb::WriteBatch*, bool*) {
  const std::string& data = batch.Data();
  if (data.size() < kBatchHeaderBytes) return WalProcessingOption::kContinueProcessing;
  const std::uint64_t first = FirstSequence(data);
  if (next_ != 0 && first > next_) {
    log_("recover logs: found a gap before update " + std::to_string(first) + " in '" +
         log_file_name + "', after update " + std::to_string(next_ - 1) +
         "; what follows was written without syncs before a power cut, and is left out");
    return WalProcessingOption::kStopReplay;
  }
  next_ = first + batch.Count();
  return WalProcessingOption::kContinueProcessing;
}

}  // namespace statcollect
