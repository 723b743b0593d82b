#include "server/query/curves.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <set>

namespace statcollect::query {
namespace {

struct CurveStat {
  std::string_view name;
  std::optional<double> (*of)(const ObservationSide& side);
};

template <auto kMember>
std::optional<double> ValueOf(const ObservationSide& side) {
  const auto& value = side.*kMember;
  return value ? std::optional(static_cast<double>(*value)) : std::nullopt;
}

constexpr std::array<CurveStat, 10> kCurveStats = {{{"l2", ValueOf<&ObservationSide::l2>},
                                                    {"mean", ValueOf<&ObservationSide::mean>},
                                                    {"std", ValueOf<&ObservationSide::std>},
                                                    {"min", ValueOf<&ObservationSide::min>},
                                                    {"max", ValueOf<&ObservationSide::max>},
                                                    {"l1", ValueOf<&ObservationSide::l1>},
                                                    {"nan", ValueOf<&ObservationSide::nan>},
                                                    {"pos_inf", ValueOf<&ObservationSide::pos_inf>},
                                                    {"neg_inf", ValueOf<&ObservationSide::neg_inf>},
                                                    {"zero", ValueOf<&ObservationSide::zero>}}};

CurvePlace PlaceOf(const SeriesPoint& point) { return {point.rank, point.micro_batch, point.call}; }

// One point of each step, by step; `points` are in the order of a series.
std::vector<const SeriesPoint*> OneOfEachStep(const std::vector<SeriesPoint>& points,
                                              const CurvesRequest& request) {
  std::vector<const SeriesPoint*> chosen;
  for (const SeriesPoint& point : points) {
    if (!request.mode.empty() && point.mode != request.mode) continue;
    if (request.place && PlaceOf(point) != *request.place) continue;
    chosen.push_back(&point);
  }
  const auto before = [](const SeriesPoint* x, const SeriesPoint* y) { return x->step < y->step; };
  if (!std::is_sorted(chosen.begin(), chosen.end(), before))
    std::stable_sort(chosen.begin(), chosen.end(), before);
  const auto same = [](const SeriesPoint* x, const SeriesPoint* y) { return x->step == y->step; };
  chosen.erase(std::unique(chosen.begin(), chosen.end(), same), chosen.end());
  return chosen;
}

// Values of one statistic, merged as they come in the order of their steps.
class CurveMerger {
 public:
  // A span has so many steps; 0: nothing is merged.
  CurveMerger(std::string_view stat, std::uint64_t first_step, std::uint64_t span)
      : first_step_(first_step), span_(span) {
    curve_.stat = stat;
  }

  void Take(std::uint64_t step, double value) {
    const std::uint64_t at = span_ == 0 ? 0 : (step - first_step_) / span_;
    if (span_ == 0 || curve_.steps.empty()) return Keep({step, value});
    if (at != at_) EndSpan();
    at_ = at;
    const Point point{step, value};
    last_ = point;
    if (!std::isfinite(value)) {
      if (!broken_) broken_ = point;
      return;
    }
    if (!least_ || value < least_->value) least_ = point;
    if (!most_ || value > most_->value) most_ = point;
  }

  Curve End() {
    EndSpan();
    if (last_ && curve_.steps.back() != last_->step) Keep(*last_);
    return std::move(curve_);
  }

 private:
  struct Point {
    std::uint64_t step = 0;
    double value = 0;
  };

  void Keep(const Point& point) {
    curve_.steps.push_back(point.step);
    curve_.values.push_back(point.value);
  }
  void EndSpan() {
    std::array<std::optional<Point>, 3> kept = {least_, most_, broken_};
    std::sort(kept.begin(), kept.end(), [](const auto& x, const auto& y) {
      return x && (!y || x->step < y->step);  // absent ones are the last
    });
    for (const auto& point : kept) {
      if (point && (curve_.steps.empty() || curve_.steps.back() != point->step)) Keep(*point);
    }
    least_ = most_ = broken_ = std::nullopt;
  }

  const std::uint64_t first_step_, span_;
  std::uint64_t at_ = 0;  // the span
  std::optional<Point> least_, most_, broken_, last_;
  Curve curve_;
};

void ListPlaces(const std::vector<SeriesPoint>& points, const CurvesRequest& request, Curves& curves) {
  std::set<CurvePlace> seen;
  std::set<std::uint32_t> ranks;
  const SeriesPoint* previous = nullptr;
  for (const SeriesPoint& point : points) {
    if (!request.mode.empty() && point.mode != request.mode) continue;
    if (previous != nullptr && PlaceOf(*previous) == PlaceOf(point)) continue;
    previous = &point;
    ranks.insert(point.rank);
    if (curves.places.size() < kCurvePlacesMax && seen.insert(PlaceOf(point)).second)
      curves.places.push_back({.at = PlaceOf(point), .ranks = point.ranks});
  }
  curves.ranks.assign(ranks.begin(), ranks.end());
}

}  // namespace

Curves CurvesOf(const std::vector<SeriesPoint>& points, const CurvesRequest& request) {
  Curves curves;
  ListPlaces(points, request, curves);
  const std::vector<const SeriesPoint*> chosen = OneOfEachStep(points, request);
  if (chosen.empty()) return curves;
  curves.steps = chosen.size();
  curves.first = *chosen.front();
  const std::uint64_t first = chosen.front()->step, length = chosen.back()->step - first;
  const bool merged = chosen.size() > std::size_t{2} * request.points;
  const std::uint64_t span = merged ? length / request.points + 1 : 0;
  for (const CurveStat& stat : kCurveStats) {
    CurveMerger merger(stat.name, first, span);
    for (const SeriesPoint* point : chosen) {
      const std::optional<double> value = stat.of(point->stats);
      if (value) merger.Take(point->step, *value);
    }
    Curve curve = merger.End();
    if (!curve.steps.empty()) curves.curves.push_back(std::move(curve));
  }
  return curves;
}

}  // namespace statcollect::query
