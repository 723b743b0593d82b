#include "server/api/convert_checks.h"

#include "common/names.h"
#include "proto/json.h"
#include "server/api/convert/parts.h"

namespace statcollect::api {
namespace {

static_assert(static_cast<int>(query::TopBy::kExponentLoss) == v1::TopBy_MAX);

void Fill(const query::TopRow& from, v1::TopRow& to) {
  to.set_value(from.value);
  to.set_rank(from.point.rank);
  to.set_step(from.point.step);
  to.set_micro_batch(from.point.micro_batch);
  to.set_kind(static_cast<v1::Kind>(from.point.kind));
  to.set_activation(from.point.activation);
  to.set_output_path(from.point.output_path);
  to.set_call(from.point.call);
  to.set_mode(from.point.mode);
  to.set_class_name(from.class_name);
  ToWire(from.point.stats, *to.mutable_stats());
  to.mutable_ranks()->Add(from.point.ranks.begin(), from.point.ranks.end());
}

}  // namespace

Result<query::TopRequest> FromWire(const v1::GetTopRequest& request) {
  STATCOLLECT_RETURN_IF_ERROR(ValidateRunName(request.run()));
  if (request.by() < 0 || request.by() > v1::TopBy_MAX) {
    return Status(Code::kInvalidArgument, "top: number " + std::to_string(request.by()) +
                                              " to order by is unknown to this collector; expected 0.." +
                                              std::to_string(v1::TopBy_MAX));
  }
  if (request.by() == v1::TOP_BY_UPDATE_RATIO || request.by() == v1::TOP_BY_EXPONENT_LOSS) {
    return Status(Code::kInvalidArgument,
                  "top: found '" + EnumText(*v1::TopBy_descriptor(), request.by()) +
                      "' to order by, which only a map has; expected l2 to numel; see it in "
                      "the page's view of the run, or with statctl tensor RUN NAME --stat "
                      "update_ratio and --exponents");
  }
  query::TopRequest wanted{.run = request.run(), .by = static_cast<query::TopBy>(request.by())};
  if (request.has_step()) wanted.step = request.step();
  STATCOLLECT_ASSIGN_OR_RETURN(auto ranks, RanksFromWire(request.ranks()));
  wanted.ranks = std::move(ranks);
  STATCOLLECT_ASSIGN_OR_RETURN(auto kinds, KindsFromWire(request.kinds()));
  wanted.kinds = std::move(kinds);
  wanted.count = request.count();
  wanted.by_rank = request.by_rank();
  return wanted;
}

void ToWire(const query::TopReport& report, v1::GetTopResponse& out) {
  out.set_run(report.run);
  out.set_step(report.step);
  out.set_by(static_cast<v1::TopBy>(report.by));
  for (const query::TopRow& row : report.rows) Fill(row, *out.add_records());
  out.set_considered(report.considered);
  out.mutable_notes()->Add(report.notes.begin(), report.notes.end());
}

}  // namespace statcollect::api
