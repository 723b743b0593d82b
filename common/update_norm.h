// Estimates how far an update moved all weights of a rank together, from the sketches of their
// records: the root of the sum of ||W now - W before||^2.
#ifndef STATCOLLECT_COMMON_UPDATE_NORM_H_
#define STATCOLLECT_COMMON_UPDATE_NORM_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>

#include "common/records.h"
#include "common/update_ratio.h"

namespace statcollect {

// Memory: the sketch and statistics of each weight. Not thread-safe.
class UpdateNorm {
 public:
  // A weight after the update of this step. Steps never decrease.
  void Add(std::uint32_t activation, std::uint64_t step, const TensorStats& stats,
           std::span<const double> sketch);
  // The step is over. Empty if nothing was moved, or if a weight cannot be compared: it is not
  // finite, it has no sketch, or it was not recorded in the step before.
  std::optional<double> EndStep();
  // How many weights the last norm summed.
  std::size_t weights() const { return weights_; }
  std::size_t bytes() const { return bytes_; }

 private:
  struct Weight {
    std::uint64_t step = 0;
    WeightRecord record;
  };
  std::map<std::uint32_t, Weight> last_;  // by activation
  std::size_t bytes_ = 0;
  double squares_ = 0;  // of the step at hand
  std::size_t added_ = 0, moved_ = 0, weights_ = 0;
};

}  // namespace statcollect

#endif  // STATCOLLECT_COMMON_UPDATE_NORM_H_
