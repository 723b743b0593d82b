#include <string>
#include <utility>

#include "common/names.h"
#include "server/api/convert.h"
#include "server/api/convert/parts.h"

namespace statcollect::api {

Result<query::StatMapRequest> FromWire(const v1::GetStatMapRequest& request) {
  STATCOLLECT_RETURN_IF_ERROR(ValidateRunName(request.run()));
  STATCOLLECT_RETURN_IF_ERROR(CheckStepsFromWire(request.steps()));
  if (request.by() < 0 || request.by() > v1::TopBy_MAX) {
    return Status(Code::kInvalidArgument, "stat_map: statistic " + std::to_string(request.by()) +
                                              " is unknown to this collector; expected 0.." +
                                              std::to_string(v1::TopBy_MAX));
  }
  for (const auto& [field, value] :
       {std::pair("columns", request.columns()), {"rows", request.rows()}}) {
    if (value > query::kStatMapSideMax) {
      return Status(Code::kInvalidArgument, std::string("stat_map: ") + field + " is " +
                                                std::to_string(value) + "; expected at most " +
                                                std::to_string(query::kStatMapSideMax) +
                                                "; narrow steps or kinds to see more");
    }
  }
  STATCOLLECT_ASSIGN_OR_RETURN(auto ranks, RanksFromWire(request.ranks()));
  STATCOLLECT_ASSIGN_OR_RETURN(auto kinds, KindsFromWire(request.kinds()));
  return query::StatMapRequest{.run = request.run(),
                               .by = static_cast<query::TopBy>(request.by()),
                               .ranks = std::move(ranks),
                               .steps = request.steps(),
                               .kinds = std::move(kinds),
                               .columns = request.columns(),
                               .rows = request.rows()};
}

void ToWire(const query::StatMap& map, v1::GetStatMapResponse& out) {
  out.set_run(map.run);
  out.set_by(static_cast<v1::TopBy>(map.by));
  for (const query::HeatMapRow& row : map.rows) ToWire(row, *out.add_rows());
  for (const query::StepRange& steps : map.columns) {
    out.add_first_steps(steps.first);
    out.add_last_steps(steps.last);
  }
  out.set_cells(map.cells);
  out.set_tensors(map.tensors);
  out.set_steps(map.steps);
  out.mutable_ranks()->Add(map.ranks.begin(), map.ranks.end());
}

}  // namespace statcollect::api
