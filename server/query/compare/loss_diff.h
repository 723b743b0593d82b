// Compares the losses that two runs logged.
#ifndef STATCOLLECT_SERVER_QUERY_COMPARE_LOSS_DIFF_H_
#define STATCOLLECT_SERVER_QUERY_COMPARE_LOSS_DIFF_H_

#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "common/status.h"
#include "server/query/compare/rank_step_diff.h"

namespace statcollect::query {

// Of each loss in `a`, its counterpart in `b`, or null. If one was logged several times in a step,
// the first belongs to the first, the second to the second, and so on. Points into `b`.
std::vector<const ScalarRecord*> PairLosses(std::span<const ScalarRecord> a,
                                            std::span<const ScalarRecord> b);

// Whether a loss that both have in the step differs.
bool LossesDiffer(const std::vector<ScalarRecord>& a, const std::vector<ScalarRecord>& b);

// The row of a loss, without a reason. `of_a`: its name, micro-batch and value.
Divergence MakeLossRow(const DiffContext& context, std::uint64_t step, std::uint32_t rank,
                       const ScalarRecord& of_a, double value_b, double distance);

// The position of each loss in the rank's step, as far as its records and the losses' names show;
// empty if the step has one segment. `step`: all its records, in the order of execution.
std::vector<Spot> SpotsOfLosses(std::span<const Observation> step,
                                const std::vector<ScalarRecord>& losses);

// The factor for B's loss, which may have been logged for one of the parts into which B cuts a
// batch: one of the context's factors if the losses then agree within rounding, otherwise 1. If a
// loss is wrong by such a factor in training, the gradients show it.
double LossFactor(const DiffContext& context, double a, double b);

// Not thread-safe. Context is borrowed.
class LossDiff {
 public:
  explicit LossDiff(const DiffContext& context) : context_(context) {}

  // Adds to the findings' tally, rows and first bitwise difference.
  Status Compare(RankStepFindings& at);

  // Names that only one run has.
  std::vector<std::string> OnlyInA() const;
  std::vector<std::string> OnlyInB() const;
  std::uint64_t alone() const {
    return alone_;
  }  // number of losses without counterpart in their step
  std::optional<double> factor() const { return factor_; }  // by which losses of B were multiplied
  // One sentence about it. Precondition: there is one.
  std::string FactorText(const std::string& run_a, const std::string& run_b) const;
  const std::set<std::string>& compared() const { return compared_; }  // names

 private:
  // `place`: that of A, in the report.
  Status ComparePair(const ScalarRecord& a, double b, const ReportOrder& place,
                     RankStepFindings& at);

  const DiffContext& context_;
  std::set<std::string> names_a_, names_b_, compared_;
  std::uint64_t alone_ = 0;
  std::optional<double> factor_;
};

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_COMPARE_LOSS_DIFF_H_
