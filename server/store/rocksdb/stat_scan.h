// Ordered scans over blocks of statistics.
#ifndef STATCOLLECT_SERVER_STORE_ROCKSDB_STAT_SCAN_H_
#define STATCOLLECT_SERVER_STORE_ROCKSDB_STAT_SCAN_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "server/store/record_reader.h"
#include "server/store/rocksdb/asked_before.h"
#include "server/store/rocksdb/util.h"

namespace statcollect {

std::unique_ptr<StatScan> ScanBlocks(rocksdb::DB& db, const StatFamilies& families,
                                     AttemptId attempt, std::uint32_t rank, StepBounds steps);

// See Store::VisitSeries. Its blocks are put into the cache if they were asked for before.
Status VisitSeries(rocksdb::DB& db, const StatFamilies& families, AttemptId attempt,
                   std::uint32_t rank, std::uint32_t activation, StepBounds steps,
                   AskedBefore& asked_before, const Visitor<StatPoint>& visitor);

}  // namespace statcollect

#endif  // STATCOLLECT_SERVER_STORE_ROCKSDB_STAT_SCAN_H_
