#include "server/api/convert.h"

#include "common/names.h"
#include "proto/text/zoom_text.h"
#include "server/api/convert/parts.h"

namespace statcollect::api {
namespace {

static_assert(static_cast<int>(query::ZoomOutcome::kBlock) == v1::ZoomOutcome_MAX);

void Fill(const query::ZoomOperator& from, v1::ZoomOperator& to) {
  to.set_number(from.number);
  to.set_name(from.name);
  to.set_place(from.place);
  to.set_function(from.function);
  for (const query::ZoomArgument& argument : from.arguments)
    to.add_arguments(argument.value.empty() ? argument.name : argument.name + "=" + argument.value);
  to.mutable_results()->Add(from.results.begin(), from.results.end());
}

void Fill(const query::ZoomCallReport& from, v1::ZoomCall& to) {
  to.set_module(from.module);
  to.set_class_name(from.class_name);
  to.set_pass(from.pass);
  to.set_step(from.step);
  to.set_rank(from.rank);
  to.set_micro_batch(from.micro_batch);
  to.set_call(from.call);
  to.set_outcome(static_cast<v1::ZoomOutcome>(from.outcome));
  to.set_operators_a(from.operators_a);
  to.set_operators_b(from.operators_b);
  to.set_left_out_a(from.left_out_a);
  to.set_left_out_b(from.left_out_b);
  for (const query::ZoomOperator& one : from.a) Fill(one, *to.add_a());
  for (const query::ZoomOperator& one : from.b) Fill(one, *to.add_b());
  const query::ZoomComparison& found = from.comparison;
  for (const query::ZoomDifference& one : found.differences) {
    v1::ZoomDifference& difference = *to.add_differences();
    difference.set_name(one.name);
    difference.set_a(one.a);
    difference.set_b(one.b);
  }
  to.set_inputs(found.inputs);
  to.set_inputs_equal(found.inputs_equal);
  to.set_input_distance(found.input_distance);
  to.set_distance(found.distance);
  to.set_shape_differs(found.shape);
  to.set_random_differs(found.random);
  to.set_after_a(found.after_a);
  to.set_after_b(found.after_b);
  to.set_before_a(found.before_a);
  to.set_before_b(found.before_b);
}

}  // namespace

Result<query::ZoomRequest> FromWire(const v1::GetZoomRequest& request) {
  for (const std::string* run : {&request.run_a(), &request.run_b()})
    STATCOLLECT_RETURN_IF_ERROR(ValidateRunName(*run));
  if (!request.module().empty())
    STATCOLLECT_RETURN_IF_ERROR(ValidateTensorName("module", request.module()));
  STATCOLLECT_RETURN_IF_ERROR(CheckStepsFromWire(request.steps()));
  STATCOLLECT_ASSIGN_OR_RETURN(auto ranks, RanksFromWire(request.ranks()));
  return query::ZoomRequest{.run_a = request.run_a(),
                            .run_b = request.run_b(),
                            .module = request.module(),
                            .steps = request.steps(),
                            .ranks = std::move(ranks)};
}

void ToWire(const query::ZoomReport& report, v1::GetZoomResponse& out) {
  out.set_run_a(report.run_a);
  out.set_run_b(report.run_b);
  out.set_zoomed_a(report.zoomed_a);
  out.set_zoomed_b(report.zoomed_b);
  for (const query::ZoomCallReport& call : report.calls) {
    v1::ZoomCall& to = *out.add_calls();
    Fill(call, to);
    for (std::string& line : ZoomText(to, report.run_a, report.run_b)) to.add_text(std::move(line));
  }
  out.mutable_notes()->Add(report.notes.begin(), report.notes.end());
}

}  // namespace statcollect::api
