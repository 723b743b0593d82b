#include "server/query/answers/curves.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include <google/protobuf/arena.h>

#include "common/capture_spec.h"
#include "common/choice.h"
#include "common/names.h"
#include "server/query/answers/message_parts.h"

namespace statcollect::query {
namespace {

using Side = v1::ObservationSide;
using Points = google::protobuf::RepeatedPtrField<v1::SeriesPoint>;

struct CurveStat {
  std::string_view name;
  std::optional<double> (*of)(const Side& side);
};

template <auto kHas, auto kValue>
std::optional<double> ValueOf(const Side& side) {
  return (side.*kHas)() ? std::optional(static_cast<double>((side.*kValue)())) : std::nullopt;
}

constexpr std::array<CurveStat, 10> kCurveStats = {
    {{"l2", ValueOf<&Side::has_l2, &Side::l2>},
     {"mean", ValueOf<&Side::has_mean, &Side::mean>},
     {"std", ValueOf<&Side::has_std, &Side::std>},
     {"min", ValueOf<&Side::has_min, &Side::min>},
     {"max", ValueOf<&Side::has_max, &Side::max>},
     {"l1", ValueOf<&Side::has_l1, &Side::l1>},
     {"nan", ValueOf<&Side::has_nan, &Side::nan>},
     {"pos_inf", ValueOf<&Side::has_pos_inf, &Side::pos_inf>},
     {"neg_inf", ValueOf<&Side::has_neg_inf, &Side::neg_inf>},
     {"zero", ValueOf<&Side::has_zero, &Side::zero>}}};

CurvePlace PlaceOf(const v1::SeriesPoint& point) {
  return {point.rank(), point.micro_batch(), point.call()};
}

// One point of each step, by step; `points` are in the order of a series.
std::vector<const v1::SeriesPoint*> OneOfEachStep(const Points& points,
                                                  const CurvesRequest& request) {
  std::vector<const v1::SeriesPoint*> chosen;
  for (const v1::SeriesPoint& point : points) {
    if (!request.mode.empty() && point.mode() != request.mode) continue;
    if (request.place && PlaceOf(point) != *request.place) continue;
    chosen.push_back(&point);
  }
  const auto before = [](const v1::SeriesPoint* x, const v1::SeriesPoint* y) {
    return x->step() < y->step();
  };
  if (!std::is_sorted(chosen.begin(), chosen.end(), before))
    std::stable_sort(chosen.begin(), chosen.end(), before);
  const auto same = [](const v1::SeriesPoint* x, const v1::SeriesPoint* y) {
    return x->step() == y->step();
  };
  chosen.erase(std::unique(chosen.begin(), chosen.end(), same), chosen.end());
  return chosen;
}

// Values of one statistic, merged as they come in the order of their steps.
class CurveMerger {
 public:
  // A span has so many steps; 0: nothing is merged.
  CurveMerger(std::uint64_t first_step, std::uint64_t span)
      : first_step_(first_step), span_(span) {}

  void Take(std::uint64_t step, double value) {
    const std::uint64_t at = span_ == 0 ? 0 : (step - first_step_) / span_;
    if (span_ == 0 || curve_.steps().empty()) return Keep({step, value});
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

  // Without a name.
  v1::Curve End() {
    EndSpan();
    if (last_ && *curve_.steps().rbegin() != last_->step) Keep(*last_);
    return std::move(curve_);
  }

 private:
  struct Point {
    std::uint64_t step = 0;
    double value = 0;
  };

  void Keep(const Point& point) {
    curve_.add_steps(point.step);
    curve_.add_values(point.value);
  }
  void EndSpan() {
    std::array<std::optional<Point>, 3> kept = {least_, most_, broken_};
    std::sort(kept.begin(), kept.end(), [](const auto& x, const auto& y) {
      return x && (!y || x->step < y->step);  // absent ones are the last
    });
    for (const auto& point : kept) {
      if (point && (curve_.steps().empty() || *curve_.steps().rbegin() != point->step))
        Keep(*point);
    }
    least_ = most_ = broken_ = std::nullopt;
  }

  const std::uint64_t first_step_, span_;
  std::uint64_t at_ = 0;  // the span
  std::optional<Point> least_, most_, broken_, last_;
  v1::Curve curve_;
};

void ListPlaces(const Points& points, const CurvesRequest& request, v1::GetCurvesResponse& out) {
  std::set<CurvePlace> seen;
  std::set<std::uint32_t> ranks;
  const v1::SeriesPoint* previous = nullptr;
  for (const v1::SeriesPoint& point : points) {
    if (!request.mode.empty() && point.mode() != request.mode) continue;
    if (previous != nullptr && PlaceOf(*previous) == PlaceOf(point)) continue;
    previous = &point;
    ranks.insert(point.rank());
    if (seen.size() >= kCurvePlacesMax || !seen.insert(PlaceOf(point)).second) continue;
    v1::CurvePlace& added = *out.add_places();
    added.set_rank(point.rank());
    added.set_micro_batch(point.micro_batch());
    added.set_call(point.call());
    *added.mutable_ranks() = point.ranks();
  }
  out.mutable_ranks()->Assign(ranks.begin(), ranks.end());
}

// "RANK/MICRO_BATCH/CALL"
std::optional<CurvePlace> ParsePlace(const std::string& text) {
  CurvePlace place;
  const char* at = text.data();
  const char* const end = at + text.size();
  for (std::uint32_t* const number : {&place.rank, &place.micro_batch, &place.call}) {
    if (number != &place.rank && (at == end || *at++ != '/')) return std::nullopt;
    const auto [rest, error] = std::from_chars(at, end, *number);
    if (error != std::errc()) return std::nullopt;
    at = rest;
  }
  return at == end ? std::optional(place) : std::nullopt;
}

}  // namespace

Result<CurvesRequest> FromWire(const v1::GetCurvesRequest& request) {
  v1::GetSeriesRequest series;
  series.set_run(request.run());
  series.set_activation(request.activation());
  series.set_kind(request.kind());
  *series.mutable_ranks() = request.ranks();
  series.set_steps(request.steps());
  series.set_output_path(request.output_path());
  series.set_by_rank(request.by_rank());
  STATCOLLECT_ASSIGN_OR_RETURN(auto of, FromWire(series));
  if (request.points() > kCurvePointsMax) {
    return Invalid("curves: points is " + std::to_string(request.points()) + "; expected at most " +
                   std::to_string(kCurvePointsMax) +
                   "; /api/v1/series has the value of every step");
  }
  if (!request.mode().empty() && !ParseMode(request.mode()))
    return Invalid("curves: mode: " + NotOneOf(request.mode(), {"train", "eval", "init"}));
  CurvesRequest wanted{.series = std::move(of), .mode = request.mode()};
  if (request.points() > 0) wanted.points = request.points();
  if (!request.place().empty()) {
    wanted.place = ParsePlace(request.place());
    if (!wanted.place) {
      return Invalid(
          "curves: place is '" + Printable(request.place()) +
          "'; expected RANK/MICRO_BATCH/CALL of one of the places in an answer, for example 0/0/0");
    }
  }
  return wanted;
}

void CurvesOf(const v1::GetSeriesResponse& series, const CurvesRequest& request,
              v1::GetCurvesResponse& out) {
  const Points& points = series.records();
  ListPlaces(points, request, out);
  const std::vector<const v1::SeriesPoint*> chosen = OneOfEachStep(points, request);
  if (chosen.empty()) return;
  out.set_steps(chosen.size());
  *out.mutable_first() = *chosen.front();
  const std::uint64_t first = chosen.front()->step(), length = chosen.back()->step() - first;
  const bool merged = chosen.size() > std::size_t{2} * request.points;
  const std::uint64_t span = merged ? length / request.points + 1 : 0;
  for (const CurveStat& stat : kCurveStats) {
    CurveMerger merger(first, span);
    for (const v1::SeriesPoint* point : chosen) {
      const std::optional<double> value = stat.of(point->stats());
      if (value) merger.Take(point->step(), *value);
    }
    v1::Curve curve = merger.End();
    if (curve.steps().empty()) continue;
    curve.set_stat(std::string(stat.name));
    *out.add_curves() = std::move(curve);
  }
}

Status GetCurves(const Context& context, const CurvesRequest& request, v1::GetCurvesResponse& out) {
  google::protobuf::Arena arena;  // a long series is made without an allocation for each point
  auto* const series = google::protobuf::Arena::CreateMessage<v1::GetSeriesResponse>(&arena);
  STATCOLLECT_RETURN_IF_ERROR(GetSeries(context, request.series, *series));
  CurvesOf(*series, request, out);
  return Status::Ok();
}

}  // namespace statcollect::query
