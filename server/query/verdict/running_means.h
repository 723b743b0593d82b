// How large running means are: a mean may be zero except for rounding (behind a linear layer whose
// inputs are centred), and what rounds is as large as the values that it is taken of.
#ifndef STATCOLLECT_SERVER_QUERY_VERDICT_RUNNING_MEANS_H_
#define STATCOLLECT_SERVER_QUERY_VERDICT_RUNNING_MEANS_H_

#include <span>
#include <string_view>
#include <unordered_map>

#include "server/query/pairs/tensor_pair.h"

namespace statcollect::query {

// Of one step. Cost: a look at each pair; memory: a number for each module with running statistics.
class RunningMeans {
 public:
  // Names must outlive this.
  void Step(std::span<const TensorPair> pairs);
  // A's norm; of a `running_mean` beside a `running_var`, at least that of the channels' standard
  // deviations.
  double SizeOf(const TensorPair& pair) const;

 private:
  std::unordered_map<std::string_view, double> deviations_;  // norm over the channels, by module
};

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_VERDICT_RUNNING_MEANS_H_
