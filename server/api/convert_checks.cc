#include "server/api/convert_checks.h"

#include "common/names.h"
#include "server/api/convert.h"

namespace statcollect::api {
namespace {

static_assert(static_cast<int>(query::TopBy::kNumel) == v1::TopBy_MAX);
static_assert(static_cast<int>(query::ConfigCategory::kOther) == v1::ConfigCategory_MAX);

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
}

}  // namespace

Result<query::TopRequest> FromWire(const v1::GetTopRequest& request) {
  STATCOLLECT_RETURN_IF_ERROR(ValidateRunName(request.run()));
  if (request.by() < 0 || request.by() > v1::TopBy_MAX) {
    return Status(Code::kInvalidArgument, "top: number " + std::to_string(request.by()) +
                                              " to order by is unknown to this collector; expected 0.." +
                                              std::to_string(v1::TopBy_MAX));
  }
  query::TopRequest wanted{.run = request.run(), .by = static_cast<query::TopBy>(request.by())};
  if (request.has_step()) wanted.step = request.step();
  auto ranks = RanksFromWire(request.ranks());
  if (!ranks.ok()) return ranks.status();
  wanted.ranks = *std::move(ranks);
  auto kinds = KindsFromWire(request.kinds());
  if (!kinds.ok()) return kinds.status();
  wanted.kinds = *std::move(kinds);
  wanted.count = request.count();
  return wanted;
}

Result<query::ConfigRequest> FromWire(const v1::CompareConfigRequest& request) {
  STATCOLLECT_RETURN_IF_ERROR(ValidateRunName(request.run_a()));
  if (!request.run_b().empty()) STATCOLLECT_RETURN_IF_ERROR(ValidateRunName(request.run_b()));
  return query::ConfigRequest{.run_a = request.run_a(), .run_b = request.run_b(), .all = request.all()};
}

void ToWire(const query::TopReport& report, v1::GetTopResponse& out) {
  out.set_run(report.run);
  out.set_step(report.step);
  out.set_by(static_cast<v1::TopBy>(report.by));
  for (const query::TopRow& row : report.rows) Fill(row, *out.add_records());
  out.set_considered(report.considered);
  out.mutable_notes()->Add(report.notes.begin(), report.notes.end());
}

void ToWire(const query::ConfigReport& report, v1::ConfigReport& out) {
  out.set_run_a(report.run_a);
  out.set_run_b(report.run_b);
  out.set_same(report.same);
  for (const query::ConfigItem& item : report.items) {
    v1::ConfigItem& added = *out.add_items();
    added.set_category(static_cast<v1::ConfigCategory>(item.category));
    added.set_key(item.key);
    if (item.a) added.set_a(*item.a);
    if (item.b) added.set_b(*item.b);
    added.set_same(item.same);
  }
  out.set_compared(report.compared);
  out.set_differ(report.differ);
  out.mutable_notes()->Add(report.notes.begin(), report.notes.end());
}

}  // namespace statcollect::api
