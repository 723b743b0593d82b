// The cross-rank check of one run: what must be equal on all replicas, and what differs from its
// peers. docs/ranks.md has the rules and their limits.
#ifndef STATCOLLECT_SERVER_QUERY_RANKS_RANKS_H_
#define STATCOLLECT_SERVER_QUERY_RANKS_RANKS_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "common/status.h"
#include "server/query/compare/replicas.h"
#include "server/query/parallel.h"
#include "server/query/reports.h"
#include "server/query/run_view.h"

namespace statcollect::query {

// As in proto/statcollect/v1/query.proto.
enum class RanksVerdict : std::uint8_t {
  kUnspecified = 0,
  kConsistent = 1,
  kInconsistent = 2,
  kIncomparable = 3
};

enum class RankReason : std::uint8_t {
  kUnspecified = 0,
  kWeightsDiffer = 1,
  kStateDiffers = 2,
  kGradientsDiffer = 3,
  kShapeDiffers = 4,
  kSameBatch = 5,
  kFrozenWeight = 6,
  kLossDiffers = 7,
  kNonfinite = 8,
  kOutlier = 9,
  kMissingRank = 10,
  kMissingStep = 11,
  kMissingActivation = 12,
  kEndedEarly = 13,
};
std::string_view Name(RankReason reason);  // "weights_differ"

inline constexpr std::uint32_t kFindingsDefault = 100;
// A norm is an outlier if its logarithm is further from the median over the ranks than
// kOutlierSpreads robust standard deviations, and by at least kOutlierRatio. Needs kOutlierRanksMin
// ranks.
inline constexpr double kOutlierSpreads = 10, kOutlierRatio = 2;
inline constexpr std::size_t kOutlierRanksMin = 4;

struct RanksRequest {
  std::string run;
  std::string steps;                 // as for StepSet::Parse
  std::vector<std::uint32_t> ranks;  // empty: all
  std::vector<Kind> kinds;           // empty: all, and the losses; otherwise only these
  // relative L2; absent: bit for bit if ranks have agreed so before, otherwise by dtype
  std::optional<double> tolerance;
  std::uint32_t top = 0;  // maximum number of findings; 0: kFindingsDefault
};

struct RankFinding {
  std::uint64_t step = 0;  // the first one
  std::uint32_t micro_batch = 0;
  Stage stage = Stage::kUnspecified;
  Kind kind = Kind::kUnspecified;  // unspecified: not about a tensor
  std::string activation, output_path;
  std::uint32_t call = 0;
  std::string class_name, mode;
  RankReason reason = RankReason::kUnspecified;
  Ranks ranks;   // the affected ranks
  Ranks others;  // the ranks they were compared with; empty: none, or `ranks` among themselves
  bool outvoted = false;  // more than half of the replicas agree against `ranks`
  std::optional<double> distance, tolerance;
  DistanceKind distance_kind = DistanceKind::kUnspecified;
  // Between the first of the ranks and the first that differs from it, if one is a multiple of the
  // other.
  std::optional<double> factor;
  std::uint32_t factor_of = 0, factor_to = 0;  // `factor` times the value on rank `factor_to`
  bool apart =
      false;  // by more than rounding: above the tolerance of the dtype, or of another shape
  std::uint32_t segment = 0;  // number of updates before it in the step (step_order.h)
  bool replicas = false;  // a placement, the configuration or equal bits before say that they are
  std::optional<double> value,
      expected;                   // rms, loss or norm of the gradient; median or the others'
  std::uint64_t activations = 1;  // number of distinct tensors affected
  std::uint64_t steps = 1;        // number of steps affected
  std::uint64_t last_step = 0;
  bool propagated = false;  // an earlier finding about these ranks explains it
  std::string text;         // one sentence
};

struct RanksReport {
  std::string run;
  RanksVerdict verdict = RanksVerdict::kUnspecified;
  std::vector<RankFinding> findings;  // by step, then in the order of the step
  Compared compared;                  // tensors of a rank, each against its replicas
  std::vector<Ranks> groups;          // replicas of each other
  Ranks ranks;
  std::optional<StepRange> steps;
  std::string message;  // if incomparable: why
  std::vector<std::string> notes;
};

// Stop requests are checked, and progress is reported, once per step and rank. Memory: about 32
// bytes per tensor of one step of one group of replicas, 48 per weight of each rank, and 16 steps
// of a rank in full, which several threads read ahead of the checks; the checks run in order on one
// thread. The answer does not depend on the number of threads.
Result<RanksReport> CheckRanks(RunView& view, const RanksRequest& request,
                               const std::function<bool(AttemptId, std::uint32_t)>& is_stream_open,
                               const std::function<void(const Progress&)>& progress,
                               const std::stop_token& stop,
                               std::size_t threads = ThreadsOfAQuery());

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_RANKS_RANKS_H_
