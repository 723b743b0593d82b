// Decides whether two records agree, by the tolerance and the noise floor of a diff.
#ifndef STATCOLLECT_SERVER_QUERY_COMPARE_PAIR_JUDGE_H_
#define STATCOLLECT_SERVER_QUERY_COMPARE_PAIR_JUDGE_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "common/status.h"
#include "server/query/compare/distance.h"
#include "server/query/compare/rank_step_diff.h"
#include "server/query/run_view.h"

namespace statcollect::query {

// Judges pairs of one rank and step; looks up the noise when a pair first needs it. Borrows both.
// Not thread-safe.
class PairJudge {
 public:
  PairJudge(const DiffContext& context, const RankStepFindings& at) : context_(context), at_(at) {}

  // `id_a`: whose noise counts. `interval`: with the distance's interval. After a failure (status)
  // noise is 0.
  Comparison operator()(const Observation& a, const Observation& b, std::uint32_t id_a,
                        bool interval);
  const Status& status() const { return status_; }

 private:
  double NoiseOf(std::uint32_t id_a);

  const DiffContext& context_;
  const RankStepFindings& at_;
  Status status_;
  std::optional<std::vector<double>> noise_;
};

// Sets the comparison and both sides of a row that has A's name; B's name only where it differs.
void FillPair(Divergence& row, const Comparison& comparison, const Observation& a,
              const Observation& b);

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_COMPARE_PAIR_JUDGE_H_
