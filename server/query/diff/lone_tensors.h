// Tells two models from two runs of one model, by what has no counterpart.
#ifndef STATCOLLECT_SERVER_QUERY_DIFF_LONE_TENSORS_H_
#define STATCOLLECT_SERVER_QUERY_DIFF_LONE_TENSORS_H_

#include <set>
#include <string>

#include "server/query/compare/alignment.h"
#include "server/query/compare/rank_step_diff.h"

namespace statcollect::query {

// The tensors, except batches, that one run has and the other one certainly lacks. A few of those
// are a difference between two models of one kind. Where nearly all are alone, what happens to be
// called alike says nothing.
class LoneTensors {
 public:
  void Add(const MissingRecord& missing);
  // One sentence for people; empty: they may well be one model.
  std::string WhyOtherModels(const Aligner& aligner, const std::string& run_a,
                             const std::string& run_b) const;

 private:
  std::set<std::string> of_a_, of_b_;  // labels
};

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_DIFF_LONE_TENSORS_H_
