#include <string>

#include "common/names.h"
#include "server/api/convert/parts.h"
#include "server/api/convert_checks.h"

namespace statcollect::api {

Result<query::LossesRequest> FromWire(const v1::ListLossesRequest& request) {
  if (static_cast<std::size_t>(request.runs_size()) > query::kLossRunsMax) {
    return Invalid("losses: found " + std::to_string(request.runs_size()) + " runs; expected at most " +
                   std::to_string(query::kLossRunsMax) + "; ask several times for more");
  }
  for (const std::string& run : request.runs()) STATCOLLECT_RETURN_IF_ERROR(ValidateRunName(run));
  if (request.points() > query::kLossPointsMax) {
    return Invalid("losses: points is " + std::to_string(request.points()) + "; expected at most " +
                   std::to_string(query::kLossPointsMax) + "; /api/v1/scalars has all of them");
  }
  return query::LossesRequest{.runs = {request.runs().begin(), request.runs().end()},
                              .points = request.points() > 0 ? request.points() : query::kLossPoints};
}

void ToWire(const std::vector<query::RunLoss>& runs, v1::ListLossesResponse& out) {
  for (const query::RunLoss& run : runs) {
    v1::RunLoss& added = *out.add_runs();
    added.set_run(run.run);
    added.set_name(run.name);
    for (const query::LossPoint& point : run.points) {
      added.add_steps(point.step);
      added.add_values(point.value);
    }
    added.set_alarms(run.alarms);
  }
}

}  // namespace statcollect::api
