// Compares the losses that two runs logged.
#ifndef STATCOLLECT_SERVER_QUERY_LOSS_DIFF_H_
#define STATCOLLECT_SERVER_QUERY_LOSS_DIFF_H_

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "common/status.h"
#include "server/query/rank_step_diff.h"

namespace statcollect::query {

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
  Status ComparePair(const ScalarRecord& a, double b, std::uint64_t position, RankStepFindings& at);

  const DiffContext& context_;
  std::set<std::string> names_a_, names_b_, compared_;
  std::uint64_t alone_ = 0;
};

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_LOSS_DIFF_H_
