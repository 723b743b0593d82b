// Counters of ingest since the start of the process.
#ifndef STATCOLLECT_SERVER_INGEST_COUNTERS_H_
#define STATCOLLECT_SERVER_INGEST_COUNTERS_H_

#include <atomic>
#include <cstdint>

namespace statcollect {

struct IngestCounters {
  std::atomic<std::uint64_t> streams{0};            // accepted after their hello
  std::atomic<std::uint64_t> batches{0};            // accepted, with new records
  std::atomic<std::uint64_t> bytes{0};              // of accepted batches
  std::atomic<std::uint64_t> records{0};            // durable
  std::atomic<std::uint64_t> duplicate_records{0};  // received again and discarded
  std::atomic<std::uint64_t> rejected_batches{0};
  std::atomic<std::uint64_t> agents_dropped{
      0};  // reported as lost, in durable batches and goodbyes
};

}  // namespace statcollect

#endif  // STATCOLLECT_SERVER_INGEST_COUNTERS_H_
