// Reads of records that are not statistics.
#ifndef STATCOLLECT_SERVER_STORE_ROCKSDB_RECORDS_H_
#define STATCOLLECT_SERVER_STORE_ROCKSDB_RECORDS_H_

#include <cstdint>
#include <string>

#include "common/status.h"
#include "server/store/record_reader.h"
#include "server/store/rocksdb/database.h"

namespace statcollect {

// In keys of events: agents number their records from 1, the collector from here.
inline constexpr std::uint64_t kCollectorsOwn = std::uint64_t{1} << 63;

// Like the methods of Store. Thread-safe.
Status VisitStatSteps(const Database& database, AttemptId attempt, std::uint32_t rank,
                      StepBounds bounds, const Visitor<std::uint64_t>& visitor);
Status VisitRecords(const Database& database, AttemptId attempt, std::uint32_t rank,
                    StepBounds steps, RecordVisitor visitor);
Result<std::string> ReadCaptureChunk(const Database& database, AttemptId attempt,
                                     std::uint32_t rank, std::uint64_t step,
                                     std::uint32_t activation, std::uint32_t offset);

}  // namespace statcollect

#endif  // STATCOLLECT_SERVER_STORE_ROCKSDB_RECORDS_H_
