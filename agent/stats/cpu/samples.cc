#include <algorithm>

#include "agent/stats/component_values.h"
#include "agent/stats/cpu/engine.h"
#include "agent/stats/tensor_walk.h"
#include "common/names.h"

namespace statcollect::stats {

std::uint32_t CopySamples(const CpuTensor& tensor, std::span<double> samples) noexcept {
  const std::uint64_t components = ComponentCount(tensor);
  const auto wanted = static_cast<std::uint32_t>(std::min<std::uint64_t>(samples.size(), components));
  if (wanted == 0) return 0;
  const std::uint32_t parts = IsComplex(tensor.dtype) ? 2 : 1;
  TensorWalk walk(tensor);
  walk.Seek(0);
  unsigned char element[16];
  double values[2];
  for (std::uint32_t i = 0; i < wanted; ++i) {
    if (i % parts == 0) {
      walk.Copy(1, element);
      ComponentsToDoubles(tensor.dtype, element, parts, values);
    }
    samples[i] = values[i % parts];
  }
  return wanted;
}

void CopyElements(const CpuTensor& tensor, std::uint64_t elements, void* to) noexcept {
  if (elements > 0) TensorWalk(tensor).Copy(elements, to);
}

}  // namespace statcollect::stats
