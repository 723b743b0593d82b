#include "server/query/logical/overlap.h"

#include <cstddef>
#include <cstdint>

#include "common/shape.h"

namespace statcollect::query {
namespace {

bool BoxesOverlap(const Placement& a, const Placement& b) {
  const std::size_t dims = a.global_shape.size();
  for (std::size_t i = 0; i + 2 * dims <= a.boxes.size() && dims > 0; i += 2 * dims) {
    for (std::size_t j = 0; j + 2 * dims <= b.boxes.size(); j += 2 * dims) {
      bool apart = false;
      for (std::size_t d = 0; d < dims; ++d) {
        const std::int64_t from_a = a.boxes[i + d], to_a = from_a + a.boxes[i + dims + d];
        const std::int64_t from_b = b.boxes[j + d], to_b = from_b + b.boxes[j + dims + d];
        apart = apart || to_a <= from_b || to_b <= from_a;
      }
      if (!apart) return true;
    }
  }
  return false;
}

bool RangesOverlap(const Placement& a, const Placement& b) {
  for (std::size_t i = 0; i + 1 < a.ranges.size(); i += 2) {
    for (std::size_t j = 0; j + 1 < b.ranges.size(); j += 2) {
      if (a.ranges[i] < b.ranges[j + 1] && b.ranges[j] < a.ranges[i + 1]) return true;
    }
  }
  return false;
}

}  // namespace

bool Overlap(const Layout& a, const Layout& b) {
  if (NumelOf(a.shape) == 0 || NumelOf(b.shape) == 0) return false;
  if (!a.placement || !b.placement) return true;
  if (a.placement->boxes.empty() && a.placement->ranges.empty()) return true;
  if (b.placement->boxes.empty() && b.placement->ranges.empty()) return true;
  return BoxesOverlap(*a.placement, *b.placement) || RangesOverlap(*a.placement, *b.placement);
}

}  // namespace statcollect::query
