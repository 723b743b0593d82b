// Finds which modules of run B are modules of run A under another name, from what they are and when they ran.
#ifndef STATCOLLECT_SERVER_QUERY_COMPARE_SEQUENCE_ALIGNMENT_H_
#define STATCOLLECT_SERVER_QUERY_COMPARE_SEQUENCE_ALIGNMENT_H_

#include <string>
#include <vector>

#include "server/query/run_view.h"

namespace statcollect::query {

class Alignment;

// An output of B that stands for one of A.
struct OrderMatch {
  std::string name_a, path_a, name_b, path_b;
  double confidence = 0;  // 0.6..1
};

// Looks at the outputs of one step's first training pass (first micro-batch, first call) that have no
// counterpart in `alignment` and whose name the other run does not use at all. Those between the same matched
// neighbours are aligned as sequences (longest common subsequence): a pair has one class and one shape.
// Confidence: 0.6 for that, 0.15 for one depth, 0.15 and 0.1 where the outputs before and behind stand for
// one another too; from 0.7 on a pair counts. Cost: the product of what is unmatched on both sides; nothing
// is aligned where that is above kAlignmentCellsMax.
std::vector<OrderMatch> AlignBySequence(const StepData& a, const StepData& b, const Alignment& alignment);

inline constexpr std::size_t kAlignmentCellsMax = 25'000'000;

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_COMPARE_SEQUENCE_ALIGNMENT_H_
