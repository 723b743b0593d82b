// Shapes of tensors: the sizes of their dimensions.
#ifndef STATCOLLECT_COMMON_SHAPE_H_
#define STATCOLLECT_COMMON_SHAPE_H_

#include <cstdint>
#include <span>

namespace statcollect {

// The number of elements: the product of the sizes, 1 without dimensions. Precondition: no size is
// negative, and the shape has been checked to have fewer than 2^64 elements (proto/convert.h,
// stats::Validate).
constexpr std::uint64_t NumelOf(std::span<const std::int64_t> shape) noexcept {
  std::uint64_t numel = 1;
  for (const std::int64_t size : shape) numel *= static_cast<std::uint64_t>(size);
  return numel;
}

}  // namespace statcollect

#endif  // STATCOLLECT_COMMON_SHAPE_H_
