// The extreme activations of one step: the largest norm, the first NaN, the most zeros.
#ifndef STATCOLLECT_SERVER_QUERY_TOP_H_
#define STATCOLLECT_SERVER_QUERY_TOP_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "common/status.h"
#include "server/query/reports.h"
#include "server/query/run_view.h"

namespace statcollect::query {

// As TopBy in proto/statcollect/v1/query.proto, which describes each one.
enum class TopBy : std::uint8_t {
  kUnspecified = 0,  // l2
  kL2 = 1,
  kL1 = 2,
  kAbsMax = 3,
  kRms = 4,
  kStd = 5,
  kMean = 6,
  kMax = 7,
  kMin = 8,
  kNan = 9,
  kInf = 10,
  kZeroFraction = 11,
  kNumel = 12,
  kUpdateRatio = 13,   // of a map only
  kExponentLoss = 14,  // of a map only
};
std::string_view Name(TopBy by);  // "zero_fraction"; "unspecified" for values out of range

inline constexpr std::uint32_t kTopCountMax = 10'000;

struct TopRequest {
  std::string run;
  TopBy by = TopBy::kUnspecified;
  std::optional<std::uint64_t> step;  // absent: the newest with statistics
  std::vector<std::uint32_t> ranks;   // empty: all
  std::vector<Kind> kinds;            // empty: all
  std::uint32_t count = 0;            // rows; 0: kTopDefault
  bool by_rank = false;               // the parts of tensors that are cut over ranks
};

struct TopRow {
  double value = 0;
  SeriesPoint point;
  std::string class_name;
};

struct TopReport {
  std::string run;
  std::uint64_t step = 0;
  TopBy by = TopBy::kL2;
  std::vector<TopRow> rows;  // most extreme first
  std::uint64_t considered = 0;
  std::vector<std::string> notes;
};

// Whether `a` comes before `b`.
bool IsMoreExtreme(TopBy by, double a, double b);

// The value to order by; absent if the observation has none (no finite element, not recorded) or it means
// nothing (no NaN, no zero).
std::optional<double> ValueOf(TopBy by, const ObservationSide& side, bool complex);

// Memory: one step of one rank, and the rows. kInvalidArgument: count; kNotFound: the step (names the
// nearest); kCancelled.
// `wanted` (null: all): whether a tensor counts.
Result<TopReport> FindTop(RunView& view, const TopRequest& request, const std::stop_token& stop,
                          const std::function<bool(const TensorKey&)>& wanted = nullptr);

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_TOP_H_
