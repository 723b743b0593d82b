// Ordered scans over blocks of statistics in ClickHouse.
//
// The engine hands out heads first: places, sizes and digests, about 60 bytes for 256 records.
// Values are read only of the blocks that are loaded, a window of them at a time. A diff loads what
// differs, so the engine does its first pass.
#ifndef STATCOLLECT_SERVER_STORE_CLICKHOUSE_SCAN_H_
#define STATCOLLECT_SERVER_STORE_CLICKHOUSE_SCAN_H_

#include <cstdint>
#include <memory>

#include "server/store/clickhouse/attempts.h"
#include "server/store/clickhouse/engine.h"
#include "server/store/record_reader.h"

namespace statcollect {

// The scan borrows both.
std::unique_ptr<StatScan> ScanClickHouseBlocks(Engine& engine, AttemptTable& attempts,
                                               AttemptId attempt, std::uint32_t rank,
                                               StepBounds steps);

// See Store::VisitSeries and Store::VisitStatSteps.
Status VisitClickHouseSeries(Engine& engine, AttemptTable& attempts, AttemptId attempt,
                             std::uint32_t rank, std::uint32_t activation, StepBounds steps,
                             const Visitor<StatPoint>& visitor);
Status VisitClickHouseSteps(Engine& engine, AttemptId attempt, std::uint32_t rank, StepBounds steps,
                            const Visitor<std::uint64_t>& visitor);

}  // namespace statcollect

#endif  // STATCOLLECT_SERVER_STORE_CLICKHOUSE_SCAN_H_
