// What a list of runs shows of each: its loss at a few steps, and its alarms.
#ifndef STATCOLLECT_SERVER_QUERY_ANSWERS_LOSSES_H_
#define STATCOLLECT_SERVER_QUERY_ANSWERS_LOSSES_H_

#include <cstddef>

#include "server/query/answers/leaf.h"

namespace statcollect::query {

inline constexpr std::size_t kLossRunsMax = 100;
inline constexpr std::uint32_t kLossPoints = 40, kLossPointsMax = 200;
inline constexpr std::uint64_t kAlarmsCountedMax = 10'000;

struct LossesRequest {
  std::vector<std::string> runs;
  std::uint32_t points = kLossPoints;
};

// Adds: too many runs or points.
Result<LossesRequest> FromWire(const v1::ListLossesRequest& request);

// The runs in their order; those that do not exist are left out. Cost of a run: a seek for each
// point and each rank, whatever its length. The loss is one rank's, of the newest attempt that
// logged one around that step.
Status ListLosses(const Context& context, const LossesRequest& request,
                  v1::ListLossesResponse& out);

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_ANSWERS_LOSSES_H_
