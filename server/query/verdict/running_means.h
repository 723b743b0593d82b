// The size against which a running mean is judged. A mean may be zero except for rounding (behind a
// linear layer whose inputs are centred), and that rounding is relative to the values that were
// averaged.
#ifndef STATCOLLECT_SERVER_QUERY_VERDICT_RUNNING_MEANS_H_
#define STATCOLLECT_SERVER_QUERY_VERDICT_RUNNING_MEANS_H_

#include <span>
#include <string_view>
#include <unordered_map>

#include "server/query/pairs/tensor_pair.h"

namespace statcollect::query {

// For one step. Cost: a look at each pair; memory: a number for each module with running
// statistics.
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
