#include <algorithm>
#include <charconv>
#include <iterator>
#include <optional>
#include <string>
#include <utility>

#include "common/choice.h"
#include "common/names.h"
#include "server/api/convert.h"
#include "server/api/convert/parts.h"
#include "server/api/convert_checks.h"

namespace statcollect::api {
namespace {

// "RANK/MICRO_BATCH/CALL"
std::optional<query::CurvePlace> ParsePlace(const std::string& text) {
  query::CurvePlace place;
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

Result<query::CurvesRequest> FromWire(const v1::GetCurvesRequest& request) {
  v1::GetSeriesRequest series;
  series.set_run(request.run());
  series.set_activation(request.activation());
  series.set_kind(request.kind());
  *series.mutable_ranks() = request.ranks();
  series.set_steps(request.steps());
  series.set_output_path(request.output_path());
  series.set_by_rank(request.by_rank());
  STATCOLLECT_ASSIGN_OR_RETURN(auto of, FromWire(series));
  if (request.points() > query::kCurvePointsMax) {
    return Invalid("curves: points is " + std::to_string(request.points()) + "; expected at most " +
                   std::to_string(query::kCurvePointsMax) + "; /api/v1/series has the value of every step");
  }
  constexpr Mode kModes[] = {Mode::kTrain, Mode::kEval, Mode::kInit};
  const bool known =
      request.mode().empty() || std::any_of(std::begin(kModes), std::end(kModes),
                                            [&](Mode mode) { return request.mode() == Name(mode); });
  if (!known) return Invalid("curves: mode: " + NotOneOf(request.mode(), {"train", "eval", "init"}));
  query::CurvesRequest wanted{.series = std::move(of), .mode = request.mode()};
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

void ToWire(const query::Curves& curves, v1::GetCurvesResponse& out) {
  for (const query::Curve& curve : curves.curves) {
    v1::Curve& added = *out.add_curves();
    added.set_stat(std::string(curve.stat));
    added.mutable_steps()->Add(curve.steps.begin(), curve.steps.end());
    added.mutable_values()->Add(curve.values.begin(), curve.values.end());
  }
  out.set_steps(curves.steps);
  Copy(curves.first, [&](const query::SeriesPoint& point) { ToWire(point, *out.mutable_first()); });
  for (const query::Curves::Place& place : curves.places) {
    v1::CurvePlace& added = *out.add_places();
    added.set_rank(place.at.rank);
    added.set_micro_batch(place.at.micro_batch);
    added.set_call(place.at.call);
    added.mutable_ranks()->Add(place.ranks.begin(), place.ranks.end());
  }
  out.mutable_ranks()->Add(curves.ranks.begin(), curves.ranks.end());
}

}  // namespace statcollect::api
