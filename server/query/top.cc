#include "server/query/top.h"

#include <algorithm>
#include <cmath>

namespace statcollect::query {

bool IsMoreExtreme(TopBy by, double a, double b) {
  switch (by) {
    case TopBy::kMin:
      return a < b;
    case TopBy::kMean:
      return std::abs(a) > std::abs(b);
    default:
      return a > b;
  }
}

namespace {

std::optional<double> Nonzero(double value) {
  return value > 0 ? std::optional(value) : std::nullopt;
}

std::optional<double> Number(const std::optional<std::uint64_t>& count) {
  return count ? std::optional(static_cast<double>(*count)) : std::nullopt;
}

std::optional<double> Infinities(const ObservationSide& side) {
  if (side.inf) return Number(side.inf);
  if (!side.pos_inf || !side.neg_inf) return std::nullopt;
  return static_cast<double>(*side.pos_inf) + static_cast<double>(*side.neg_inf);
}

std::optional<double> Rms(const ObservationSide& side, double elements) {
  const auto infinite = Infinities(side);
  if (!side.l2 || !infinite || !side.nan) return std::nullopt;
  const double finite = elements - *infinite - static_cast<double>(*side.nan);
  return finite > 0 ? std::optional(*side.l2 / std::sqrt(finite)) : std::nullopt;
}

}  // namespace

std::optional<double> ValueOf(TopBy by, const ObservationSide& side, bool complex) {
  const double elements = Number(side.numel).value_or(0) * (complex ? 2 : 1);
  const auto unless_zero = [](const std::optional<double>& value) {
    return value ? Nonzero(*value) : std::nullopt;
  };
  switch (by) {
    case TopBy::kL1:
      return side.l1;
    case TopBy::kAbsMax:
      if (!side.min || !side.max) return std::nullopt;
      return std::max(std::abs(*side.min), std::abs(*side.max));
    case TopBy::kRms:
      return Rms(side, elements);
    case TopBy::kStd:
      return side.std;
    case TopBy::kMean:
      return side.mean;
    case TopBy::kMax:
      return side.max;
    case TopBy::kMin:
      return side.min;
    case TopBy::kNan:
      return unless_zero(Number(side.nan));
    case TopBy::kInf:
      return unless_zero(Infinities(side));
    case TopBy::kZeroFraction:
      return elements > 0 && side.zero ? Nonzero(static_cast<double>(*side.zero) / elements)
                                       : std::nullopt;
    case TopBy::kNumel:
      return Number(side.numel);
    default:
      return side.l2;
  }
}

}  // namespace statcollect::query
