#include "server/api/convert_checks.h"

#include <cmath>

#include "common/names.h"
#include "server/api/convert.h"
#include "server/api/tensor_row.h"

namespace statcollect::api {
namespace {

static_assert(static_cast<int>(query::TopBy::kNumel) == v1::TopBy_MAX);
static_assert(static_cast<int>(query::ConfigCategory::kOther) == v1::ConfigCategory_MAX);
static_assert(static_cast<int>(query::RanksVerdict::kIncomparable) == v1::RanksVerdict_MAX);
static_assert(static_cast<int>(query::RankReason::kEndedEarly) == v1::RankReason_MAX);

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

void Fill(const query::FormatLoss& from, std::uint64_t components, v1::FormatLoss& to) {
  to.set_dtype(std::string(Name(from.format)));
  to.set_to_zero(from.to_zero);
  to.set_subnormal(from.subnormal);
  to.set_overflow(from.overflow);
  to.set_lost(components == 0 ? 0.0 : static_cast<double>(from.lost()) / static_cast<double>(components));
}

void Fill(const query::ExponentRow& from, v1::ExponentRow& to) {
  FillTensor(from, from.record.step, to);
  to.set_lowest(from.record.lowest);
  to.mutable_counts()->Assign(from.record.counts.begin(), from.record.counts.end());
  to.set_components(from.components);
  for (const query::FormatLoss& loss : from.formats) Fill(loss, from.components, *to.add_formats());
  to.set_steps(from.steps);
  if (from.since_step) to.set_since_step(*from.since_step);
  to.set_last_step(from.last_step);
}

bool IsNarrowFloat(DType dtype) {
  return dtype == DType::kF16 || dtype == DType::kBf16 || dtype == DType::kF8E4M3 || dtype == DType::kF8E5M2;
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

Result<query::RanksRequest> FromWire(const v1::CheckRanksRequest& request) {
  STATCOLLECT_RETURN_IF_ERROR(ValidateRunName(request.run()));
  STATCOLLECT_RETURN_IF_ERROR(CheckStepsFromWire(request.steps()));
  query::RanksRequest wanted{.run = request.run(), .steps = request.steps(), .top = request.top()};
  auto ranks = RanksFromWire(request.ranks());
  if (!ranks.ok()) return ranks.status();
  wanted.ranks = *std::move(ranks);
  auto kinds = KindsFromWire(request.kinds());
  if (!kinds.ok()) return kinds.status();
  wanted.kinds = *std::move(kinds);
  if (request.has_tolerance()) {
    if (!std::isfinite(request.tolerance()) || request.tolerance() < 0) {
      return Status(Code::kInvalidArgument, "ranks: tolerance is " + std::to_string(request.tolerance()) +
                                                "; expected a finite number of at least 0, a relative L2 "
                                                "distance such as 1e-6");
    }
    wanted.tolerance = request.tolerance();
  }
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

Result<query::ExponentsRequest> FromWire(const v1::ListExponentsRequest& request) {
  STATCOLLECT_RETURN_IF_ERROR(ValidateRunName(request.run()));
  if (!request.activation().empty())
    STATCOLLECT_RETURN_IF_ERROR(ValidateTensorName("activation", request.activation()));
  STATCOLLECT_RETURN_IF_ERROR(CheckStepsFromWire(request.steps()));
  auto ranks = RanksFromWire(request.ranks());
  if (!ranks.ok()) return ranks.status();
  auto kinds = KindsFromWire(request.kinds());
  if (!kinds.ok()) return kinds.status();
  const auto format = static_cast<DType>(request.format());
  if (request.format() != v1::DTYPE_UNSPECIFIED &&
      (request.format() < 0 || request.format() >= kDTypeCount || !IsNarrowFloat(format))) {
    return Status(Code::kInvalidArgument, "exponents: the format is " + std::to_string(request.format()) +
                                              "; expected f16, bf16, f8e4m3 or f8e5m2");
  }
  if (!(request.lost_min() >= 0 && request.lost_min() <= 1)) {
    return Status(Code::kInvalidArgument, "exponents: lost_min is " + std::to_string(request.lost_min()) +
                                              "; expected a share of 0..1");
  }
  query::ExponentsRequest wanted{.run = request.run(),
                                 .activation = request.activation(),
                                 .kinds = *std::move(kinds),
                                 .ranks = *std::move(ranks),
                                 .steps = request.steps(),
                                 .format = format,
                                 .summary = request.summary()};
  if (request.lost_min() > 0) wanted.lost_min = request.lost_min();
  return wanted;
}

void ToWire(const std::vector<query::ExponentRow>& rows, v1::ListExponentsResponse& out) {
  for (const query::ExponentRow& row : rows) Fill(row, *out.add_records());
}

void ToWire(const query::RanksReport& report, v1::RanksReport& out) {
  out.set_run(report.run);
  out.set_verdict(static_cast<v1::RanksVerdict>(report.verdict));
  for (const query::RankFinding& finding : report.findings) Fill(finding, *out.add_findings());
  v1::Compared& compared = *out.mutable_compared();
  compared.set_records(report.compared.records);
  compared.set_identical(report.compared.identical);
  compared.set_within_tolerance(report.compared.within_tolerance);
  compared.set_diverged(report.compared.diverged);
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
