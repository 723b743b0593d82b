#include "server/query/compare/combine.h"

#include <algorithm>
#include <cmath>

#include "server/query/compare/distance.h"

namespace statcollect::query {
namespace {

// Mean and standard deviation of two sets of elements.
struct Moments {
  double count = 0, mean = 0, squares = 0;  // squares: sum of squared deviations from the mean
  void Add(double other_count, double other_mean, double other_std) {
    if (other_count <= 0) return;
    const double sum = count + other_count, apart = other_mean - mean;
    mean += apart * (other_count / sum);
    squares += other_std * other_std * other_count + apart * apart * (count * (other_count / sum));
    count = sum;
  }
};

void AddCounts(const TensorStats& part, TensorStats& whole) {
  whole.numel += part.numel;
  whole.nan += part.nan;
  whole.pos_inf += part.pos_inf;
  whole.neg_inf += part.neg_inf;
  whole.zero += part.zero;
  whole.neg += part.neg;
  whole.pos += part.pos;
}

void AddValues(const TensorStats& part, TensorStats& whole) {
  if (!part.has_finite) return;
  whole.min = whole.has_finite ? std::min(whole.min, part.min) : part.min;
  whole.max = whole.has_finite ? std::max(whole.max, part.max) : part.max;
  whole.l1 += part.l1;
  whole.l2 = std::hypot(whole.l2, part.l2);
  whole.has_finite = true;
}

}  // namespace

Combined Combine(std::span<const Observation> parts) {
  Combined whole{
      .def = parts.front().def, .layout = *parts.front().layout, .stats = {}, .sketch = {}};
  Moments moments;
  for (const Observation& part : parts) {
    whole.layout.absent |= part.layout->absent;
    whole.layout.untrusted |= part.layout->untrusted;
    AddCounts(*part.stats, whole.stats);
    AddValues(*part.stats, whole.stats);
    if (part.stats->has_finite) moments.Add(FiniteCount(part), part.stats->mean, part.stats->std);
  }
  whole.stats.mean = moments.mean;
  whole.stats.std = moments.count > 0 ? std::sqrt(moments.squares / moments.count) : 0;
  const std::uint32_t counted =
      BitOf(Statistic::kShape) | BitOf(Statistic::kNan) | BitOf(Statistic::kInf);
  if ((whole.layout.absent & counted) != 0)  // how many elements a mean is over is not known
    whole.layout.absent |= BitOf(Statistic::kMean) | BitOf(Statistic::kStd);
  whole.layout.absent |= BitOf(Statistic::kHash);
  whole.layout.untrusted &= ~whole.layout.absent;
  whole.layout.placement.reset();
  whole.layout.shape.clear();
  if (whole.layout.Has(Statistic::kShape))
    whole.layout.shape = {static_cast<std::int64_t>(whole.stats.numel)};
  return whole;
}

}  // namespace statcollect::query
