#include "server/api/convert.h"

#include "server/api/convert/parts.h"

namespace statcollect::api {
namespace {

static_assert(static_cast<int>(query::RanksVerdict::kIncomparable) == v1::RanksVerdict_MAX);
static_assert(static_cast<int>(query::RankReason::kEndedEarly) == v1::RankReason_MAX);

void Fill(const query::RankFinding& from, v1::RankFinding& to) {
  FillTensor(from, to);
  to.set_reason(static_cast<v1::RankReason>(from.reason));
  to.mutable_ranks()->Add(from.ranks.begin(), from.ranks.end());
  to.mutable_others()->Add(from.others.begin(), from.others.end());
  to.set_outvoted(from.outvoted);
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
  FillEnd(report, out);
}

}  // namespace statcollect::api
