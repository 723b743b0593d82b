// Compares the losses that two runs logged.
#ifndef STATCOLLECT_SERVER_QUERY_COMPARE_LOSS_DIFF_H_
#define STATCOLLECT_SERVER_QUERY_COMPARE_LOSS_DIFF_H_

#include <cstdint>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "common/status.h"
#include "server/query/compare/rank_step_diff.h"

namespace statcollect::query {

// Whether any loss that both have in the step is not the same number.
bool LossesDiffer(const std::vector<ScalarRecord>& a, const std::vector<ScalarRecord>& b);

// Where the losses of a rank's step stand in it, as far as its records and the losses' names tell; empty if
// that is one segment. `step`: all of the step, in the order of execution.
std::vector<Spot> SpotsOfLosses(std::span<const Observation> step, const std::vector<ScalarRecord>& losses);

// Not thread-safe. Context is borrowed.
class LossDiff {
 public:
  explicit LossDiff(const DiffContext& context) : context_(context) {}

  // Adds to the findings' tally, rows and first bitwise difference. A loss logged several times in a step is
  // compared first with first, second with second.
  Status Compare(RankStepFindings& at);

  // Names that only one run has.
  std::vector<std::string> OnlyInA() const;
  std::vector<std::string> OnlyInB() const;
  std::uint64_t alone() const { return alone_; }  // losses without counterpart in their step
  const std::set<std::string>& compared() const { return compared_; }  // names

 private:
  // `place`: A's, in the report.
  Status ComparePair(const ScalarRecord& a, double b, const ReportOrder& place, RankStepFindings& at);

  const DiffContext& context_;
  std::set<std::string> names_a_, names_b_, compared_;
  std::uint64_t alone_ = 0;
};

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_COMPARE_LOSS_DIFF_H_
