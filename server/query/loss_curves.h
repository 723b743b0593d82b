// What a list of runs shows of each: its loss at a few steps, and its alarms.
#ifndef STATCOLLECT_SERVER_QUERY_LOSS_CURVES_H_
#define STATCOLLECT_SERVER_QUERY_LOSS_CURVES_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "common/status.h"
#include "server/store/store.h"

namespace statcollect::query {

inline constexpr std::size_t kLossRunsMax = 100;
inline constexpr std::uint32_t kLossPoints = 40, kLossPointsMax = 200;
inline constexpr std::uint64_t kAlarmsCountedMax = 10'000;

struct LossesRequest {
  std::vector<std::string> runs;
  std::uint32_t points = kLossPoints;
};

struct LossPoint {
  std::uint64_t step = 0;
  double value = 0;  // may be NaN or infinite
};

struct RunLoss {
  std::string run;
  std::string name;               // of the scalar; empty: none was found
  std::vector<LossPoint> points;  // ascending
  std::uint64_t alarms = 0;
};

// The runs in their order; those that do not exist are left out. Cost of a run: a seek for each point and each rank, whatever its length.
// The loss is one rank's, of the newest attempt that logged one around that step.
Result<std::vector<RunLoss>> ListLosses(Store& store, const LossesRequest& request);

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_LOSS_CURVES_H_
