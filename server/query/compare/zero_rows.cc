#include "server/query/compare/zero_rows.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "common/names.h"
#include "common/shape.h"

namespace statcollect::query {
namespace {

// Whether the shapes differ, and in one dimension only.
bool DifferInRows(const Layout& a, const Layout& b) {
  if (a.hash_kind != HashKind::kRows3 || b.hash_kind != HashKind::kRows3 || a.dtype != b.dtype ||
      a.shape.size() != b.shape.size())
    return false;
  std::size_t differing = 0;
  for (std::size_t d = 0; d < a.shape.size(); ++d) differing += a.shape[d] != b.shape[d] ? 1 : 0;
  constexpr std::uint32_t kUsed = BitOf(Statistic::kZero) | BitOf(Statistic::kL2);
  return differing == 1 && ((a.absent | a.untrusted | b.absent | b.untrusted) & kUsed) == 0;
}

// Of the components that remain without `zeros` of them. What padding hides of the extremes is
// taken from the set without it.
void Take(std::uint64_t zeros, const TensorStats& unpadded, TensorStats* stats) {
  const std::uint64_t finite = stats->zero + stats->neg + stats->pos, left = finite - zeros;
  stats->numel = unpadded.numel;
  stats->zero -= zeros;
  if (left == 0) {
    stats->has_finite = false;
    stats->min = stats->max = stats->mean = stats->std = stats->l1 = stats->l2 = 0;
    return;
  }
  const auto n = static_cast<double>(left);
  stats->mean *= static_cast<double>(finite) / n;
  const double root = stats->l2 / std::sqrt(n);
  stats->std = std::sqrt(std::max(0.0, (root - stats->mean) * (root + stats->mean)));
  if (stats->min == 0) stats->min = unpadded.min;
  if (stats->max == 0) stats->max = unpadded.max;
}

}  // namespace

bool TakeZeroRows(const Observation& a, const Observation& b, SameRows* rows) {
  if (!DifferInRows(*a.layout, *b.layout)) return false;
  const std::uint64_t in_a = NumelOf(a.layout->shape), in_b = NumelOf(b.layout->shape);
  const Observation& padded = in_a > in_b ? a : b;
  const Observation& other = in_a > in_b ? b : a;
  const std::uint64_t parts = IsComplex(a.layout->dtype) ? 2 : 1;
  const std::uint64_t zeros = parts * (std::max(in_a, in_b) - std::min(in_a, in_b));
  if (padded.stats->zero < zeros || padded.stats->zero - zeros != other.stats->zero) return false;
  rows->layout = *other.layout;
  rows->stats = *padded.stats;
  Take(zeros, *other.stats, &rows->stats);
  rows->a = a;
  rows->b = b;
  Observation& trimmed = in_a > in_b ? rows->a : rows->b;
  trimmed.layout = &rows->layout;
  trimmed.stats = &rows->stats;
  return true;
}

}  // namespace statcollect::query
