#include "common/update_ratio.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace statcollect {
namespace {

constexpr double kGroup = 16;  // elements that share a sum of the sketch

// The ratio of the true value to the estimate at this number of standard deviations, by Wilson and
// Hilferty.
double Quantile(double spread, double deviations) {
  const double root = 1.0 - spread + deviations * std::sqrt(spread);
  return root > 0.05 ? std::sqrt(root * root * root) : 0.0;
}

}  // namespace

std::optional<UpdateRatio> EstimateUpdateRatio(const WeightRecord& before,
                                               const WeightRecord& after) {
  const TensorStats &a = before.stats, &b = after.stats;
  if (a.numel != b.numel || !a.has_finite || a.nan + a.pos_inf + a.neg_inf > 0 ||
      b.nan + b.pos_inf + b.neg_inf > 0)
    return std::nullopt;
  if (a.hash == b.hash) return UpdateRatio{};
  if (before.sketch.empty() || before.sketch.size() != after.sketch.size() || a.l2 <= 0)
    return std::nullopt;
  double squares = 0;
  for (std::size_t i = 0; i < before.sketch.size(); ++i) {
    const double part = (after.sketch[i] - before.sketch[i]) / a.l2;
    squares += part * part;
  }
  // The norms alone prove this lower bound; it is not an estimate.
  const double proven = std::abs(b.l2 - a.l2) / a.l2;
  const double groups = std::max(1.0, std::ceil(static_cast<double>(a.numel) / kGroup));
  const double spread =
      2.0 / 9.0 * (1.0 / static_cast<double>(before.sketch.size()) + 1.0 / groups);
  UpdateRatio ratio{.value = std::max(std::sqrt(squares), proven)};
  const double lower = Quantile(spread, -2);
  ratio.low = std::max(std::sqrt(squares) / Quantile(spread, 2), proven);
  ratio.high = lower > 0 ? std::max(ratio.value, std::sqrt(squares) / lower)
                         : std::numeric_limits<double>::infinity();
  return ratio;
}

}  // namespace statcollect
