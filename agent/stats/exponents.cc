#include "agent/stats/exponents.h"

#include <algorithm>

#include "agent/stats/component_values.h"
#include "agent/stats/exponent_of.h"
#include "agent/stats/float_environment.h"
#include "agent/stats/tensor_walk.h"
#include "common/names.h"

namespace statcollect::stats {
namespace {

constexpr std::size_t kBlockElements = 1024;

}  // namespace

void CountExponents(const CpuTensor& tensor, int lowest, std::span<std::uint64_t> counts) noexcept {
  std::fill(counts.begin(), counts.end(), std::uint64_t{0});
  if (counts.empty()) return;
  const DefaultFloatEnvironment environment;
  const std::size_t parts = IsComplex(tensor.dtype) ? 2 : 1;
  const auto bins = static_cast<std::uint32_t>(counts.size());
  TensorWalk walk(tensor);
  walk.Seek(0);
  alignas(16) unsigned char elements[kBlockElements * 16];
  double values[kBlockElements * 2];
  for (std::uint64_t left = walk.size(); left > 0;) {
    const std::uint64_t count = std::min<std::uint64_t>(left, kBlockElements);
    walk.Copy(count, elements);
    ComponentsToDoubles(tensor.dtype, elements, count * parts, values);
    for (std::size_t i = 0; i < count * parts; ++i) {
      const std::int32_t exponent = ExponentOf(values[i]);
      if (exponent != kNoExponent) ++counts[BinOf(exponent, lowest, bins)];
    }
    left -= count;
  }
}

}  // namespace statcollect::stats
