// Two tensors compared element by element.
#ifndef STATCOLLECT_CLIENT_COMMANDS_VALUE_DIFF_H_
#define STATCOLLECT_CLIENT_COMMANDS_VALUE_DIFF_H_

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "client/values/tensor_values.h"

namespace statcollect::client {

struct ValueDiff {
  // One element that differs. Of a complex element, the part that differs more.
  struct Element {
    std::vector<std::int64_t> index;
    double a = 0, b = 0;
    double absolute = 0;  // |a - b|
    double relative = 0;  // |a - b| / max(|a|, |b|)
  };
  // By magnitude of |a - b|: bucket d counts 10^(d + kLowest) <= |a - b| < 10^(d + kLowest + 1);
  // the first and the last bucket include everything beyond.
  static constexpr int kLowest = -12, kBuckets = 16;

  std::string incomparable;       // if not empty: why; all other fields are then 0
  std::uint64_t elements = 0;     // compared elements: those that both runs kept
  std::uint64_t differ = 0;       // elements whose bits differ
  std::uint64_t equal_value = 0;  // of these: equal values with different bits (0 and -0, NaN)
  std::uint64_t nan_only_a = 0, nan_only_b = 0;
  std::uint64_t infinite = 0;  // an infinity on one side or of opposite sign, and no NaN
  std::optional<Element> largest, largest_relative,
      first;                          // over finite elements; `first`: over all
  double mean_absolute = 0, rms = 0;  // of a - b, over elements finite in both
  double distance = 0;                // ||a - b|| / max(||a||, ||b||), over the same
  std::array<std::uint64_t, kBuckets> buckets{};
  // Smallest and largest index of an element that differs, for each dimension.
  std::vector<std::int64_t> low, high;

  bool same() const { return incomparable.empty() && differ == 0; }
};

// Cost: one pass. Differences are computed in long double. Different dtypes or shapes are
// incomparable; of partially kept tensors, the part that both have is compared.
ValueDiff CompareValues(const TensorValues& a, const TensorValues& b);

}  // namespace statcollect::client

#endif  // STATCOLLECT_CLIENT_COMMANDS_VALUE_DIFF_H_
