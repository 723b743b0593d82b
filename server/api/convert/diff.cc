#include "server/api/convert.h"

#include "common/names.h"
#include "proto/text/routers_text.h"
#include "proto/text/verdict_text.h"
#include "server/api/convert/parts.h"

namespace statcollect::api {
namespace {

// The enumerations have the same numbers on both sides; a value added on one side only shows here.
static_assert(static_cast<int>(query::Verdict::kIncomparable) == v1::Verdict_MAX);
static_assert(static_cast<int>(query::Stage::kOptimizer) == v1::Stage_MAX);
static_assert(static_cast<int>(query::Reason::kBitwise) == v1::Reason_MAX);
static_assert(static_cast<int>(query::DistanceKind::kStatistics) == v1::DistanceKind_MAX);

// Row: v1::Divergence or v1::Root, which begins with the same fields.
template <typename Row>
void Fill(const query::Divergence& from, Row& to) {
  FillTensor(from, to);
  to.set_rank(from.rank);
  to.set_reason(static_cast<v1::Reason>(from.reason));
  Copy(from.distance_low, [&](double value) { to.set_distance_low(value); });
  Copy(from.distance_high, [&](double value) { to.set_distance_high(value); });
  Copy(from.times_noise, [&](double value) { to.set_times_noise(value); });
  to.set_origin(from.origin);
  Copy(from.a, [&](const auto& side) { ToWire(side, *to.mutable_a()); });
  Copy(from.b, [&](const auto& side) { ToWire(side, *to.mutable_b()); });
  to.set_previous(from.previous);
  Copy(from.previous_distance, [&](double value) { to.set_previous_distance(value); });
  to.set_activation_b(from.activation_b);
  Copy(from.rank_b, [&](std::uint32_t rank) { to.set_rank_b(rank); });
  if (!from.logical) return;
  to.mutable_ranks_a()->Assign(from.ranks_a.begin(), from.ranks_a.end());
  to.mutable_ranks_b()->Assign(from.ranks_b.begin(), from.ranks_b.end());
  const auto& side = from.a ? from.a : from.b;
  if (side) to.mutable_global_shape()->Assign(side->shape.begin(), side->shape.end());
  for (const query::DifferingPart& part : from.parts) {
    v1::DifferingPart& added = *to.add_parts();
    added.set_place(part.place);
    added.mutable_ranks_a()->Assign(part.ranks_a.begin(), part.ranks_a.end());
    added.mutable_ranks_b()->Assign(part.ranks_b.begin(), part.ranks_b.end());
    added.set_distance(part.distance);
  }
  to.set_parts_total(from.parts_total);
}

void Fill(const query::RouterDiff& from, const v1::DiffReport& report, v1::RouterDiff& to) {
  to.set_router(from.router);
  to.set_router_b(from.router_b);
  to.set_step(from.step);
  to.set_finding(std::string(Name(from.finding)));
  to.set_tokens(from.tokens);
  to.set_chosen(from.chosen);
  to.set_agreeing(from.agreeing);
  to.set_flips(from.flips);
  to.set_near_ties(from.near_ties);
  Copy(from.margin, [&](double value) { to.set_margin(value); });
  Copy(from.margin_limit, [&](double value) { to.set_margin_limit(value); });
  Copy(from.distance, [&](double value) { to.set_distance(value); });
  Copy(from.distance_limit, [&](double value) { to.set_distance_limit(value); });
  if (from.dtype_a != DType::kUnspecified) to.set_dtype_a(std::string(Name(from.dtype_a)));
  if (from.dtype_b != DType::kUnspecified) to.set_dtype_b(std::string(Name(from.dtype_b)));
  to.set_layer(from.layer);
  Copy(from.explained, [&](double value) { to.set_explained(value); });
  to.set_apart(from.apart);
  Copy(from.expert, [&](std::uint32_t value) { to.set_expert(value); });
  to.set_expert_tokens(from.expert_tokens);
  to.mutable_load_a()->Assign(from.load_a.begin(), from.load_a.end());
  to.mutable_load_b()->Assign(from.load_b.begin(), from.load_b.end());
  to.set_text(RouterText(to, report));
}

void Fill(const query::Cause& from, v1::Cause& to) {
  to.set_rule(from.rule);
  to.set_text(from.text);
  to.set_confidence(std::string(query::Name(from.confidence)));
  to.set_key(from.key);
  to.set_a(from.a);
  to.set_b(from.b);
}

void Fill(const query::Root& from, v1::Root& to) {
  Fill(from.at, to);
  to.set_confidence(std::string(query::Name(from.confidence)));
  to.mutable_because()->Add(from.because.begin(), from.because.end());
  for (const query::Divergence& row : from.alternatives) Fill(row, *to.add_alternatives());
  if (!from.causes.empty()) Fill(from.causes.front(), *to.mutable_cause());
  for (const query::Cause& cause : from.causes) Fill(cause, *to.add_causes());
  Copy(from.times_expected, [&](double value) { to.set_times_expected(value); });
  Copy(from.agreeing, [&](std::uint64_t value) { to.set_agreeing(value); });
  Copy(from.above_tolerance, [&](std::uint64_t value) { to.set_above_tolerance(value); });
}

void Fill(const query::DiffInputs& from, v1::DiffInputs& to) {
  for (const query::ConfigDifference& difference : from.config) {
    v1::ConfigDifference& added = *to.add_config();
    added.set_key(difference.key);
    Copy(difference.a, [&](const std::string& value) { added.set_a(value); });
    Copy(difference.b, [&](const std::string& value) { added.set_b(value); });
  }
  to.set_weights(from.weights);
  to.set_batches(from.batches);
}

void Fill(const query::Spread& from, v1::Spread& to) {
  to.set_activations(from.activations);
  to.set_activations_total(from.activations_total);
  to.set_steps(from.steps);
  to.mutable_ranks()->Add(from.ranks.begin(), from.ranks.end());
  to.mutable_ranks_b()->Add(from.ranks_b.begin(), from.ranks_b.end());
}

void Fill(const query::AlignedNames& from, v1::AlignedNames& to) {
  to.set_a(from.a);
  to.set_b(from.b);
  to.set_method(from.method);
  to.set_confidence(from.confidence);
}

void Fill(const query::Growth& from, v1::Growth& to) {
  for (const query::GrowthPoint& point : from.points) {
    v1::GrowthPoint& added = *to.add_points();
    added.set_step(point.step);
    added.set_diverged(point.diverged);
    Copy(point.distance, [&](double value) { added.set_distance(value); });
    Copy(point.distance_max, [&](double value) { added.set_distance_max(value); });
  }
  Copy(from.factor_per_step, [&](double value) { to.set_factor_per_step(value); });
}

void Fill(const query::HeatMap& from, v1::HeatMap& to) {
  for (const query::HeatMapRow& row : from.rows) ToWire(row, *to.add_rows());
  for (const query::StepRange& steps : from.columns) {
    to.add_first_steps(steps.first);
    to.add_last_steps(steps.last);
  }
  to.set_cells(from.cells);
  Copy(from.origin_row, [&](std::uint32_t row) { to.set_origin_row(row); });
  Copy(from.origin_column, [&](std::uint32_t column) { to.set_origin_column(column); });
  to.set_tensors(from.tensors);
  to.set_steps(from.steps);
  for (const query::RunSummary& run : from.runs) ToWire(run, *to.add_runs());
}

}  // namespace

Result<query::DiffRequest> FromWire(const v1::DiffRequest& request) {
  for (const auto& [field, run] :
       {std::pair("run_a", &request.run_a()), {"run_b", &request.run_b()}}) {
    if (run->empty()) {
      return Invalid(std::string("diff: ") + field +
                     " is missing; expected the names of two runs, run_a and run_b; runs lists "
                     "those there are");
    }
  }
  STATCOLLECT_ASSIGN_OR_RETURN(auto wanted, SelectionFromWire<query::DiffRequest>(request));
  wanted.exact = request.exact();
  if (request.has_tolerance()) {
    STATCOLLECT_RETURN_IF_ERROR(CheckTolerance("diff", request.tolerance(), "1e-3"));
    wanted.tolerance = request.tolerance();
  }
  wanted.top = request.top();
  wanted.all = request.all();
  wanted.map = request.map();
  wanted.no_alignment = request.no_alignment();
  wanted.first_only = request.first_only();
  wanted.merge_ranks = request.merge_ranks();
  wanted.logical = request.logical();
  wanted.by_rank = request.by_rank();
  if (wanted.logical + wanted.by_rank + wanted.merge_ranks > 1) {
    return Status(Code::kInvalidArgument,
                  "diff: found several of logical, by_rank and merge_ranks; expected one at most");
  }
  STATCOLLECT_ASSIGN_OR_RETURN(wanted.noise, RunsFromWire("noise", request.noise()));
  wanted.no_noise = request.no_noise();
  STATCOLLECT_RETURN_IF_ERROR(CheckMapSide("diff", "heat_map_columns", request.heat_map_columns()));
  STATCOLLECT_RETURN_IF_ERROR(CheckMapSide("diff", "heat_map_rows", request.heat_map_rows()));
  wanted.heat_map_columns = request.heat_map_columns();
  wanted.heat_map_rows = request.heat_map_rows();
  return wanted;
}

void ToWire(const query::Progress& progress, v1::Progress& out) {
  out.set_done(progress.done);
  out.set_total(progress.total);
}

void ToWire(const query::DiffReport& report, v1::DiffReport& out) {
  out.set_run_a(report.run_a);
  out.set_run_b(report.run_b);
  out.set_source_a(report.source_a);
  out.set_source_b(report.source_b);
  out.set_verdict(static_cast<v1::Verdict>(report.verdict));
  for (const query::PremiseCheck& check : report.comparable) {
    v1::PremiseCheck& added = *out.add_comparable();
    added.set_check(std::string(query::Name(check.premise)));
    added.set_ok(check.ok);
    added.set_detail(check.detail);
  }
  Copy(report.first, [&](const auto& row) { Fill(row, *out.mutable_first()); });
  for (const query::Divergence& row : report.diverged) Fill(row, *out.add_diverged());
  ToWire(report.compared, *out.mutable_compared());
  v1::Unmatched& unmatched = *out.mutable_unmatched();
  unmatched.mutable_only_a()->Add(report.unmatched.only_a.begin(), report.unmatched.only_a.end());
  unmatched.mutable_only_b()->Add(report.unmatched.only_b.begin(), report.unmatched.only_b.end());
  Fill(report.inputs, *out.mutable_inputs());
  FillEnd(report, out);
  out.mutable_ranks_b()->Add(report.ranks_b.begin(), report.ranks_b.end());
  Copy(report.first_bitwise, [&](const auto& row) { Fill(row, *out.mutable_first_bitwise()); });
  for (const query::Divergence& row : report.origins) Fill(row, *out.add_origins());
  Fill(report.spread, *out.mutable_spread());
  for (const query::AlignedNames& names : report.aligned) Fill(names, *out.add_aligned());
  if (!report.growth.points.empty() || report.growth.factor_per_step)
    Fill(report.growth, *out.mutable_growth());
  if (report.noise) {
    out.mutable_noise()->mutable_runs()->Add(report.noise->runs.begin(), report.noise->runs.end());
    out.mutable_noise()->set_stored(report.noise->stored);
    out.mutable_noise()->set_twins(static_cast<std::uint32_t>(report.noise->scale.size()));
    out.mutable_noise()->mutable_scale()->Add(report.noise->scale.begin(),
                                              report.noise->scale.end());
  }
  Copy(report.root, [&](const query::Root& root) { Fill(root, *out.mutable_root()); });
  out.set_without_hash(report.without_hash);
  if (report.explained_by_rounding) out.set_explained("rounding");
  if (report.bracket) {
    out.mutable_bracket()->set_first_seen(report.bracket->first_seen);
    if (report.bracket->last_agreeing)
      out.mutable_bracket()->set_last_agreeing(*report.bracket->last_agreeing);
  }
  Copy(report.heat_map, [&](const query::HeatMap& map) { Fill(map, *out.mutable_heat_map()); });
  for (const query::RouterDiff& router : report.routers) Fill(router, out, *out.add_routers());
  *out.mutable_text() = TextOf(out);
}

}  // namespace statcollect::api
