// The same arithmetic as in distance.cc, where each step is explained: this file is compiled
// without contraction of a * b + c, so that both give the same bits.
#include "server/query/compare/column_distances.h"

#include <bit>
#include <cassert>
#include <limits>

#include "common/wide_loops.h"

namespace statcollect::query {
namespace {

constexpr double kInfinite = std::numeric_limits<double>::infinity();
constexpr std::uint64_t kNegativeNorms =
    kNegativeStd | kNegativeL2;  // only of damaged or foreign records

constexpr std::uint64_t MaskOf(bool holds) { return holds ? ~std::uint64_t{0} : 0; }
inline double Real(std::uint64_t magnitude) { return std::bit_cast<double>(magnitude); }
constexpr std::uint64_t Larger(std::uint64_t x, std::uint64_t y) { return x > y ? x : y; }
constexpr double Larger(double x, double y) { return x < y ? y : x; }
inline double Apart(double x, double y) {
  return Real(std::bit_cast<std::uint64_t>(x - y) & kMagnitude);
}
// `flag`: its position among the flags.
inline double Signed(std::uint64_t magnitude, std::uint64_t flags, unsigned flag) {
  return Real(magnitude | (flags >> flag & 1) << 63);
}

constexpr unsigned kMeanSign = std::countr_zero(std::uint64_t{kNegativeMean});
constexpr unsigned kMinSign = std::countr_zero(std::uint64_t{kNegativeMin});
constexpr unsigned kMaxSign = std::countr_zero(std::uint64_t{kNegativeMax});

STATCOLLECT_WIDE_LOOPS void FindSame(const NumberColumns &a, const NumberColumns &b,
                                     std::uint64_t *__restrict same,
                                     std::uint64_t *__restrict usual) {
  const std::uint64_t *const hash_a = a.hash, *const hash_b = b.hash;
  const std::uint64_t *const nan_a = a.nan, *const nan_b = b.nan;
  const std::uint64_t *const pos_a = a.pos_inf, *const pos_b = b.pos_inf;
  const std::uint64_t *const neg_a = a.neg_inf, *const neg_b = b.neg_inf;
  const std::uint64_t *const flags_a = a.flags, *const flags_b = b.flags;
  for (std::size_t i = 0; i < a.size; ++i) {
    same[i] = MaskOf(hash_a[i] == hash_b[i]);
    const std::uint64_t other_counts =
        (nan_a[i] ^ nan_b[i]) | (pos_a[i] ^ pos_b[i]) | (neg_a[i] ^ neg_b[i]);
    const std::uint64_t nothing_finite = (flags_a[i] & flags_b[i] & kHasFinite) ^ kHasFinite;
    usual[i] =
        MaskOf((other_counts | nothing_finite | ((flags_a[i] | flags_b[i]) & kNegativeNorms)) == 0);
  }
}

// MeasureStatisticsQuickly. Magnitudes are compared as integers, which leaves NaN above all limits.
STATCOLLECT_WIDE_LOOPS void MeasureStatistics(const NumberColumns &a, const NumberColumns &b,
                                              std::uint64_t *__restrict usual,
                                              double *__restrict to) {
  constexpr double kSmallest = 1e-150, kLargest = 1e150;
  constexpr std::uint64_t kLargestBits = std::bit_cast<std::uint64_t>(kLargest);
  const std::uint64_t *const l2_a = a.l2, *const l2_b = b.l2, *const mean_a = a.mean,
                             *const mean_b = b.mean;
  const std::uint64_t *const std_a = a.std, *const std_b = b.std, *const min_a = a.min,
                             *const min_b = b.min;
  const std::uint64_t *const max_a = a.max, *const max_b = b.max;
  const std::uint64_t *const flags_a = a.flags, *const flags_b = b.flags;
  for (std::size_t i = 0; i < a.size; ++i) {
    const std::uint64_t extremes = Larger(Larger(min_a[i], max_a[i]), Larger(min_b[i], max_b[i]));
    const std::uint64_t norms = Larger(l2_a[i], l2_b[i]);
    const std::uint64_t moments = Larger(Larger(mean_a[i], mean_b[i]), Larger(std_a[i], std_b[i]));
    const double norm = Real(norms), largest = Real(extremes);
    const double squares_a = Real(mean_a[i]) * Real(mean_a[i]) + Real(std_a[i]) * Real(std_a[i]);
    const double squares_b = Real(mean_b[i]) * Real(mean_b[i]) + Real(std_b[i]) * Real(std_b[i]);
    const double rms = __builtin_sqrt(Larger(squares_a, squares_b));
    const bool are_numbers = Larger(Larger(extremes, norms), moments) < kLargestBits;
    const bool are_usual = (norm > kSmallest) & (largest > kSmallest) & (rms > kSmallest) &
                           (rms < kLargest) & are_numbers;
    usual[i] &= MaskOf(are_usual);
    const double extremes_apart = Larger(
        Apart(Signed(min_a[i], flags_a[i], kMinSign), Signed(min_b[i], flags_b[i], kMinSign)),
        Apart(Signed(max_a[i], flags_a[i], kMaxSign), Signed(max_b[i], flags_b[i], kMaxSign)));
    const double means_apart =
        Apart(Signed(mean_a[i], flags_a[i], kMeanSign), Signed(mean_b[i], flags_b[i], kMeanSign));
    const double of_values =
        Larger(Apart(Real(l2_a[i]), Real(l2_b[i])) / norm, extremes_apart / largest);
    const double larger_std = Larger(Real(std_a[i]), Real(std_b[i]));
    const double of_moments = Larger(
        means_apart / rms, Apart(Real(std_a[i]), Real(std_b[i])) / Larger(larger_std, 0.01 * rms));
    to[i] = Larger(of_values, of_moments);
  }
}

// SquaredDifferences, of every record.
STATCOLLECT_WIDE_LOOPS void SumSquares(const double *a, const double *b, std::size_t size,
                                       std::size_t width, double *__restrict to) {
  constexpr std::size_t kSums = 8;
  for (std::size_t i = 0; i < size; ++i, a += width, b += width) {
    double sums[kSums] = {};
    std::size_t at = 0;
    for (; at + kSums <= width; at += kSums) {
      for (std::size_t j = 0; j < kSums; ++j)
        sums[j] += (a[at + j] - b[at + j]) * (a[at + j] - b[at + j]);
    }
    for (; at < width; ++at) sums[0] += (a[at] - b[at]) * (a[at] - b[at]);
    double all = 0;
    for (const double sum : sums) all += sum;
    to[i] = all;
  }
}

// MeasureSketchQuickly, from the squares.
STATCOLLECT_WIDE_LOOPS void MeasureSketches(const NumberColumns &a, const NumberColumns &b,
                                            const double *components,
                                            std::uint64_t *__restrict usual,
                                            double *__restrict squares_to_distances) {
  constexpr double kSmallest = 1e-200, kLargest = 1e200, kClearly = 1 - 1e-9;
  const std::uint64_t *const l2_a = a.l2, *const l2_b = b.l2, *const mean_a = a.mean,
                             *const mean_b = b.mean;
  const std::uint64_t *const numel = a.numel, *const nan = a.nan;
  const std::uint64_t *const pos_inf = a.pos_inf, *const neg_inf = a.neg_inf;
  const std::uint64_t *const flags_a = a.flags, *const flags_b = b.flags;
  for (std::size_t i = 0; i < a.size; ++i) {
    const double squares = squares_to_distances[i];
    const double norm = Larger(Real(l2_a[i]), Real(l2_b[i]));
    const double count = static_cast<double>(numel[i]) * components[i] -
                         static_cast<double>(nan[i]) - static_cast<double>(pos_inf[i]) -
                         static_cast<double>(neg_inf[i]);
    const double of_norms = Real(l2_a[i]) - Real(l2_b[i]);
    const double of_means =
        Signed(mean_a[i], flags_a[i], kMeanSign) - Signed(mean_b[i], flags_b[i], kMeanSign);
    const double proven = Larger(of_norms * of_norms, count * of_means * of_means);
    const double distance = __builtin_sqrt(squares) / norm;
    const bool are_usual = (squares > kSmallest) & (squares < kLargest) & (norm > 0) &
                           (norm < kLargest) & (proven < squares * kClearly) &
                           (distance < kInfinite);
    usual[i] &= MaskOf(are_usual);
    squares_to_distances[i] = distance;
  }
}

}  // namespace

void MeasureColumns(const NumberColumns &a, const NumberColumns &b,
                    const std::vector<double> &components, PairColumns &to) {
  assert(a.size == b.size && components.size() == a.size);
  to.same.resize(a.size);
  to.usual.resize(a.size);
  to.distance.resize(a.size);
  FindSame(a, b, to.same.data(), to.usual.data());
  if (a.sketch_width == 0 || a.sketch_width != b.sketch_width)
    return MeasureStatistics(a, b, to.usual.data(), to.distance.data());
  SumSquares(a.sketch, b.sketch, a.size, a.sketch_width, to.distance.data());
  MeasureSketches(a, b, components.data(), to.usual.data(), to.distance.data());
}

}  // namespace statcollect::query
