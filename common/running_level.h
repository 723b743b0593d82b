// The running level of a series: median and robust spread of its last values.
#ifndef STATCOLLECT_COMMON_RUNNING_LEVEL_H_
#define STATCOLLECT_COMMON_RUNNING_LEVEL_H_

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>

namespace statcollect {

inline constexpr std::uint32_t kLevelWindowMax = 32;  // values

struct Level {
  double median = 0;
  double spread = 0;  // a standard deviation that is robust against outliers
};

// The spread is the larger of two estimates for normally distributed values: from the median
// absolute deviation, and from the range of the middle 80 %. (Values that jump between two levels
// have a median absolute deviation of 0.) Sorts the values; there must be at least one.
inline Level LevelOf(std::span<double> values) {
  constexpr double kOfDeviation = 1.4826, kOfRange = 1 / 2.563;
  std::sort(values.begin(), values.end());
  const std::size_t n = values.size();
  const double median = values[n / 2], range = values[(n - 1) * 9 / 10] - values[(n - 1) / 10];
  for (double& value : values) value = std::abs(value - median);
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(n / 2),
                   values.end());
  return {median, std::max(kOfDeviation * values[n / 2], kOfRange * range)};
}

// The last kLevelWindowMax values in order of arrival. Not thread-safe.
class LevelWindow {
 public:
  void Push(float value) {
    values_[next_] = value;
    next_ = static_cast<std::uint8_t>((next_ + 1) % kLevelWindowMax);
    if (count_ < kLevelWindowMax) ++count_;
  }
  void Clear() { count_ = next_ = 0; }
  std::uint32_t count() const { return count_; }
  std::span<const float> values() const { return std::span(values_).first(count_); }

 private:
  std::array<float, kLevelWindowMax> values_{};
  std::uint8_t count_ = 0, next_ = 0;
};

}  // namespace statcollect

#endif  // STATCOLLECT_COMMON_RUNNING_LEVEL_H_
