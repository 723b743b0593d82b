#include "server/api/convert.h"

#include <algorithm>
#include <cstddef>

#include "common/names.h"
#include "server/api/convert/parts.h"
#include "server/query/parallel.h"

namespace statcollect::api {
namespace {

// A thread is started in the time of some dozens.
constexpr std::size_t kPointsOfAThread = 1000;

}  // namespace

Result<query::SeriesRequest> FromWire(const v1::GetSeriesRequest& request) {
  STATCOLLECT_RETURN_IF_ERROR(ValidateRunName(request.run()));
  STATCOLLECT_RETURN_IF_ERROR(ValidateTensorName("activation", request.activation()));
  STATCOLLECT_RETURN_IF_ERROR(CheckStepsFromWire(request.steps()));
  STATCOLLECT_ASSIGN_OR_RETURN(auto ranks, RanksFromWire(request.ranks()));
  STATCOLLECT_ASSIGN_OR_RETURN(auto kind, KindFromWire(request.kind()));
  query::SeriesRequest wanted{.run = request.run(), .activation = request.activation(), .kind = kind};
  wanted.ranks = std::move(ranks);
  wanted.steps = request.steps();
  wanted.by_rank = request.by_rank();
  if (!request.output_path().empty()) wanted.output_path = request.output_path();
  return wanted;
}

void ToWire(const query::SeriesPoint& point, v1::SeriesPoint& out) {
  out.set_run(point.run);
  out.set_rank(point.rank);
  out.set_step(point.step);
  out.set_micro_batch(point.micro_batch);
  out.set_kind(static_cast<v1::Kind>(point.kind));
  out.set_activation(point.activation);
  out.set_output_path(point.output_path);
  out.set_call(point.call);
  out.set_mode(point.mode);
  ToWire(point.stats, *out.mutable_stats());
  out.mutable_ranks()->Add(point.ranks.begin(), point.ranks.end());
}

void ToWire(const std::vector<query::SeriesPoint>& points, v1::GetSeriesResponse& out) {
  auto& records = *out.mutable_records();
  records.Reserve(static_cast<int>(points.size()));
  for (std::size_t i = 0; i < points.size(); ++i) records.Add();
  const std::size_t parts = (points.size() + kPointsOfAThread - 1) / kPointsOfAThread;
  query::InParallel(parts, [&](std::size_t part) {
    const std::size_t end = std::min(points.size(), (part + 1) * kPointsOfAThread);
    for (std::size_t i = part * kPointsOfAThread; i < end; ++i)
      ToWire(points[i], records[static_cast<int>(i)]);
  });
}

}  // namespace statcollect::api
