#include "server/query/logical/cut.h"

#include "common/mix_bits.h"
#include "common/placement.h"

namespace statcollect::query {

Cut CutOf(const Layout& layout) {
  if (!layout.placement) return {};
  const Placement& placement = *layout.placement;
  if (!placement.partial && placement.pieces <= 1 && IsWhole(View(placement))) return {};
  const std::size_t dims = placement.global_shape.size();
  Cut cut{static_cast<std::int64_t>(dims), placement.partial ? 1 : 0, placement.piece,
          placement.pieces, placement.ranges.empty() ? 0 : 1};
  cut.push_back(placement.unordered);
  if (!placement.ranges.empty() || dims == 0 || placement.boxes.size() < 2 * dims) return cut;
  cut.push_back(static_cast<std::int64_t>(placement.boxes.size() / (2 * dims)));
  for (std::size_t d = 0; d < dims; ++d) {
    const std::int64_t offset = placement.boxes[d], size = placement.boxes[dims + d];
    if (size == placement.global_shape[d]) continue;
    cut.push_back(static_cast<std::int64_t>(d));
    cut.push_back(size > 0 ? (offset + size - 1) / size : -1);
    cut.push_back(size > 0 ? (placement.global_shape[d] + size - 1) / size : -1);
  }
  return cut;
}

std::uint64_t PrintOf(std::uint32_t rank, const Layout& layout) {
  std::uint64_t print = MixBits(std::uint64_t{rank} + 1);
  for (const std::int64_t number : CutOf(layout))
    print = MixBits(print ^ static_cast<std::uint64_t>(number + 2));
  return print;
}

}  // namespace statcollect::query
