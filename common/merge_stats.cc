#include "common/merge_stats.h"

#include <algorithm>
#include <cmath>

namespace statcollect {
namespace {

// Finite components. Without counts of signs, as in records of other tools: finite elements, whose
// shares are the same. Precondition: has_finite.
double FiniteCount(const TensorStats& stats) {
  const std::uint64_t counted = stats.zero + stats.neg + stats.pos;
  if (counted > 0) return static_cast<double>(counted);
  const double finite = static_cast<double>(stats.numel) - static_cast<double>(stats.nan) -
                        static_cast<double>(stats.pos_inf) - static_cast<double>(stats.neg_inf);
  return std::max(finite, 1.0);
}

// Mean and standard deviation together, without squares that overflow.
void MergeMoments(TensorStats& a, const TensorStats& b) {
  const double count_a = FiniteCount(a), count_b = FiniteCount(b), count = count_a + count_b;
  const double share_a = count_a / count, share_b = count_b / count;
  // Halves: means of opposite sign may be further apart than the largest number.
  const double half = b.mean / 2 - a.mean / 2;
  const double apart = 2 * (half * std::sqrt(share_a) * std::sqrt(share_b));
  a.std = std::hypot(a.std * std::sqrt(share_a), b.std * std::sqrt(share_b), apart);
  const double mean =
      share_a < share_b ? b.mean - 2 * (half * share_a) : a.mean + 2 * (half * share_b);
  a.min = std::min(a.min, b.min);
  a.max = std::max(a.max, b.max);
  a.mean = std::clamp(mean, a.min, a.max);
  a.l1 += b.l1;
  a.l2 = std::hypot(a.l2, b.l2);
}

}  // namespace

void Merge(TensorStats& a, const TensorStats& b) noexcept {
  if (!a.has_finite && b.has_finite) {
    a.min = b.min;
    a.max = b.max;
    a.mean = b.mean;
    a.std = b.std;
    a.l1 = b.l1;
    a.l2 = b.l2;
    a.has_finite = true;
  } else if (b.has_finite) {
    MergeMoments(a, b);
  }
  a.numel += b.numel;
  a.nan += b.nan;
  a.pos_inf += b.pos_inf;
  a.neg_inf += b.neg_inf;
  a.zero += b.zero;
  a.neg += b.neg;
  a.pos += b.pos;
  a.hash += b.hash;
}

void MergeSketch(std::span<double> a, std::span<const double> b) noexcept {
  for (std::size_t i = 0; i < a.size(); ++i) a[i] += b[i];
}

}  // namespace statcollect
