// Finds modules of run B that are modules of run A under a different name, by class, shape and
// order of execution.
#ifndef STATCOLLECT_SERVER_QUERY_COMPARE_SEQUENCE_ALIGNMENT_H_
#define STATCOLLECT_SERVER_QUERY_COMPARE_SEQUENCE_ALIGNMENT_H_

#include <string>
#include <vector>

#include "server/query/run_view.h"

namespace statcollect::query {

class Alignment;

// An output of B that matches one of A.
struct OrderMatch {
  std::string name_a, path_a, name_b, path_b;
  double confidence = 0;  // 0.6..1
};

// Considers the outputs of a step's first training pass (first micro-batch, first call) that have
// no counterpart in `alignment`. Those between the same matched neighbours are aligned as sequences
// (longest common subsequence); a pair must have the same class and shape. A name that the other
// run uses is not renamed: it only pairs with itself, where a module's outputs have other paths (a
// tuple in place of a dictionary). Confidence: 0.6, plus 0.15 for equal depth, plus 0.15 and 0.1 if
// the outputs before and after match, too; pairs count from 0.7 on. Cost: the product of the
// unmatched outputs of both sides; nothing is aligned if it is above kAlignmentCellsMax.
std::vector<OrderMatch> AlignBySequence(const StepData& a, const StepData& b,
                                        const Alignment& alignment);

inline constexpr std::size_t kAlignmentCellsMax = 25'000'000;

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_COMPARE_SEQUENCE_ALIGNMENT_H_
