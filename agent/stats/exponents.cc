#include <algorithm>
#include <cmath>
#include <cstring>

#include "agent/stats/component_values.h"
#include "agent/stats/float_environment.h"
#include "agent/stats/stats.h"
#include "agent/stats/tensor_walk.h"
#include "common/names.h"

namespace statcollect::stats {
namespace {

constexpr std::size_t kBlockElements = 1024;
constexpr int kNone = INT32_MIN;

// floor(log2(|value|)), from float64's own exponent; kNone for 0, infinities and NaN.
int ExponentOf(double value) {
  std::uint64_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  const auto field = static_cast<int>(bits >> 52 & 0x7ff);
  if (field != 0 && field != 0x7ff) return field - 1023;
  return field == 0x7ff || value == 0 ? kNone : std::ilogb(value);
}

}  // namespace

void CountExponents(const CpuTensor& tensor, int lowest, std::span<std::uint64_t> counts) noexcept {
  std::fill(counts.begin(), counts.end(), std::uint64_t{0});
  if (counts.empty()) return;
  const DefaultFloatEnvironment environment;
  const std::size_t parts = IsComplex(tensor.dtype) ? 2 : 1;
  const auto highest = lowest + static_cast<int>(counts.size()) - 1;
  TensorWalk walk(tensor);
  walk.Seek(0);
  alignas(16) unsigned char elements[kBlockElements * 16];
  double values[kBlockElements * 2];
  for (std::uint64_t left = walk.size(); left > 0;) {
    const std::uint64_t count = std::min<std::uint64_t>(left, kBlockElements);
    walk.Copy(count, elements);
    ComponentsToDoubles(tensor.dtype, elements, count * parts, values);
    for (std::size_t i = 0; i < count * parts; ++i) {
      const int exponent = ExponentOf(values[i]);
      if (exponent != kNone)
        ++counts[static_cast<std::size_t>(std::clamp(exponent, lowest, highest) - lowest)];
    }
    left -= count;
  }
}

}  // namespace statcollect::stats
