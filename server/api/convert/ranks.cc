#include "server/api/convert.h"

#include "server/api/convert/parts.h"

namespace statcollect::api {
namespace {

static_assert(static_cast<int>(query::RanksVerdict::kIncomparable) == v1::RanksVerdict_MAX);
static_assert(static_cast<int>(query::RankReason::kEndedEarly) == v1::RankReason_MAX);

void Fill(const query::RankFinding& from, v1::RankFinding& to) {
  to.set_step(from.step);
  to.set_micro_batch(from.micro_batch);
  to.set_stage(static_cast<v1::Stage>(from.stage));
  to.set_kind(static_cast<v1::Kind>(from.kind));
  to.set_activation(from.activation);
  to.set_output_path(from.output_path);
  to.set_call(from.call);
  to.set_class_name(from.class_name);
  to.set_mode(from.mode);
  to.set_reason(static_cast<v1::RankReason>(from.reason));
  to.mutable_ranks()->Add(from.ranks.begin(), from.ranks.end());
  to.mutable_others()->Add(from.others.begin(), from.others.end());
  to.set_outvoted(from.outvoted);
  if (from.distance) to.set_distance(*from.distance);
  if (from.tolerance) to.set_tolerance(*from.tolerance);
  to.set_distance_kind(static_cast<v1::DistanceKind>(from.distance_kind));
  if (from.value) to.set_value(*from.value);
  if (from.expected) to.set_expected(*from.expected);
  to.set_activations(from.activations);
  to.set_steps(from.steps);
  to.set_last_step(from.last_step);
  to.set_propagated(from.propagated);
  to.set_text(from.text);
}

}  // namespace

Result<query::RanksRequest> FromWire(const v1::CheckRanksRequest& request) {
  auto wanted = SelectionFromWire<query::RanksRequest>(request);
  if (!wanted.ok()) return wanted;
  wanted->top = request.top();
  if (request.has_tolerance()) {
    STATCOLLECT_RETURN_IF_ERROR(CheckTolerance("ranks", request.tolerance(), "1e-6"));
    wanted->tolerance = request.tolerance();
  }
  return wanted;
}

void ToWire(const query::RanksReport& report, v1::RanksReport& out) {
  out.set_run(report.run);
  out.set_verdict(static_cast<v1::RanksVerdict>(report.verdict));
  for (const query::RankFinding& finding : report.findings) Fill(finding, *out.add_findings());
  ToWire(report.compared, *out.mutable_compared());
  for (const query::Ranks& group : report.groups)
    out.add_groups()->mutable_ranks()->Add(group.begin(), group.end());
  out.mutable_ranks()->Add(report.ranks.begin(), report.ranks.end());
  if (report.steps) {
    out.mutable_steps()->set_first(report.steps->first);
    out.mutable_steps()->set_last(report.steps->last);
  }
  out.set_message(report.message);
  out.mutable_notes()->Add(report.notes.begin(), report.notes.end());
}

}  // namespace statcollect::api
