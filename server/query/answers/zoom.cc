#include "server/query/answers/zoom.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <optional>
#include <string_view>
#include <tuple>
#include <utility>

#include "common/names.h"
#include "common/step_set.h"
#include "proto/text/zoom_text.h"
#include "server/query/answers/message_parts.h"
#include "server/query/rows.h"
#include "server/query/run_view.h"
#include "server/query/zoom/compare_calls.h"
#include "server/query/zoom/document.h"

namespace statcollect::query {
namespace {

static_assert(static_cast<int>(ZoomOutcome::kBlock) == v1::ZoomOutcome_MAX);

constexpr int kCallsMax = 1000;  // of an answer

// Every zoomed call of a rank, each step of the launch that it comes from.
struct Found {
  std::size_t attempt = 0;
  ZoomDocument document;
};
using Calls = std::map<std::tuple<std::uint64_t, std::uint32_t, std::string, std::size_t,
                                  std::string, std::uint32_t, std::uint32_t>,
                       Found>;

// Passes in the order in which they run: those that are unknown come last.
std::size_t OrderOf(const std::string& pass) {
  static constexpr std::string_view kPasses[] = {"forward", "backward", "update"};
  return static_cast<std::size_t>(std::find(std::begin(kPasses), std::end(kPasses), pass) -
                                  std::begin(kPasses));
}

Result<Calls> CallsOf(RunView& view, const ZoomRequest& request, const StepSet& wanted, bool* any) {
  STATCOLLECT_ASSIGN_OR_RETURN(const StepOwners owners, StepOwners::Of(view, wanted));
  Calls calls;
  for (std::size_t attempt = 0; attempt < view.attempts().size(); ++attempt) {
    for (const auto& [rank, meta] : view.ranks(attempt)) {
      STATCOLLECT_ASSIGN_OR_RETURN(const auto events, view.Events(attempt, rank));
      for (ZoomDocument& document : ReadZoomDocuments(events)) {
        *any = true;
        if (!wanted.Contains(document.step) || !IsWanted(request.ranks, rank) ||
            !owners.IsOf(attempt, document.step) ||
            (!request.module.empty() && document.module != request.module))
          continue;
        auto key = std::tuple(document.step, rank, document.module, OrderOf(document.pass),
                              document.pass, document.micro_batch, document.call);
        calls.insert_or_assign(std::move(key),
                               Found{.attempt = attempt, .document = std::move(document)});
      }
    }
  }
  return calls;
}

// The records of a step's operators, by name, output path, micro-batch and call.
class Values {
 public:
  Status Read(RunView& view, std::size_t attempt, std::uint32_t rank, std::uint64_t step) {
    const auto at = std::tuple(attempt, rank, step);
    if (at_ == at) return Status::Ok();
    STATCOLLECT_ASSIGN_OR_RETURN(data_, view.Read(attempt, rank, step));
    at_ = at;
    by_key_.clear();
    for (const Observation& seen : data_.observations) {
      if (seen.def->key.kind == Kind::kOperator) by_key_[KeyOf(seen.def->key)] = &seen;
    }
    return Status::Ok();
  }

  ZoomSide Side(const ZoomDocument& document) const {
    return {.document = &document,
            .value = [this, &document](const ZoomRef& ref) -> const Observation* {
              auto [name, path] = RecordedAs(document, ref);
              const auto found = by_key_.find(
                  Key(std::move(name), std::move(path), document.micro_batch, document.call));
              return found == by_key_.end() ? nullptr : found->second;
            }};
  }

 private:
  using Key = std::tuple<std::string, std::string, std::uint32_t, std::uint32_t>;
  static Key KeyOf(const TensorKey& key) {
    return {key.name, key.output_path, key.micro_batch, key.call};
  }

  std::optional<std::tuple<std::size_t, std::uint32_t, std::uint64_t>> at_;
  StepData data_;
  std::map<Key, const Observation*> by_key_;
};

void Fill(const ZoomOperator& from, v1::ZoomOperator& to) {
  to.set_number(from.number);
  to.set_name(from.name);
  to.set_place(from.place);
  to.set_function(from.function);
  for (const ZoomArgument& argument : from.arguments)
    to.add_arguments(argument.value.empty() ? argument.name : argument.name + "=" + argument.value);
  to.mutable_results()->Add(from.results.begin(), from.results.end());
}

void Fill(const ZoomComparison& found, v1::ZoomCall& to) {
  to.set_outcome(static_cast<v1::ZoomOutcome>(found.outcome));
  for (const ZoomOperator* one : found.a) Fill(*one, *to.add_a());
  for (const ZoomOperator* one : found.b) Fill(*one, *to.add_b());
  for (const ZoomDifference& one : found.differences) {
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

void AddCall(std::uint32_t rank, const ZoomSide& a, const ZoomSide& b, v1::GetZoomResponse& out) {
  v1::ZoomCall& call = *out.add_calls();
  const ZoomDocument &in_a = *a.document, &in_b = *b.document;
  call.set_module(in_a.module);
  call.set_class_name(in_a.class_name);
  call.set_pass(in_a.pass);
  call.set_step(in_a.step);
  call.set_rank(rank);
  call.set_micro_batch(in_a.micro_batch);
  call.set_call(in_a.call);
  call.set_operators_a(in_a.operators.size());
  call.set_operators_b(in_b.operators.size());
  call.set_left_out_a(in_a.left_out);
  call.set_left_out_b(in_b.left_out);
  Fill(CompareCalls(a, b), call);
  for (std::string& line : ZoomText(call, out.run_a(), out.run_b())) call.add_text(std::move(line));
}

void NoteUnmatched(const std::string& has, const std::string& lacks, const Calls& of,
                   const Calls& other, v1::GetZoomResponse& out) {
  const auto lone = std::count_if(of.begin(), of.end(),
                                  [&](const auto& call) { return !other.contains(call.first); });
  if (lone > 0) {
    out.add_notes("only " + has + " has zoomed into " + std::to_string(lone) +
                  (lone == 1 ? " of these calls; " : " of these calls; ") + lacks + " has not");
  }
}

void NoteUnreadable(const std::string& run, const Calls& calls, v1::GetZoomResponse& out) {
  std::uint64_t lost = 0;
  for (const auto& [key, call] : calls) lost += call.document.unreadable;
  if (lost > 0) {
    out.add_notes("of " + run + "'s zooms, " + std::to_string(lost) +
                  " parts are missing or cannot be read; the comparison is of the rest");
  }
}

}  // namespace

Result<ZoomRequest> FromWire(const v1::GetZoomRequest& request) {
  STATCOLLECT_ASSIGN_OR_RETURN(auto wanted, SelectionFromWire<ZoomRequest>(request));
  if (!request.module().empty())
    STATCOLLECT_RETURN_IF_ERROR(ValidateTensorName("module", request.module()));
  wanted.module = request.module();
  return wanted;
}

Status GetZoom(const Context& context, const ZoomRequest& request, v1::GetZoomResponse& out) {
  STATCOLLECT_ASSIGN_OR_RETURN(auto a, RunView::Open(context.store, request.run_a));
  STATCOLLECT_ASSIGN_OR_RETURN(auto b, RunView::Open(context.store, request.run_b));
  STATCOLLECT_ASSIGN_OR_RETURN(const StepSet wanted, StepSet::Parse(request.steps));
  out.set_run_a(a.run());
  out.set_run_b(b.run());
  bool any_a = false, any_b = false;
  STATCOLLECT_ASSIGN_OR_RETURN(const Calls calls_a, CallsOf(a, request, wanted, &any_a));
  STATCOLLECT_ASSIGN_OR_RETURN(const Calls calls_b, CallsOf(b, request, wanted, &any_b));
  out.set_zoomed_a(any_a);
  out.set_zoomed_b(any_b);
  Values values_a, values_b;
  for (const auto& [key, of_a] : calls_a) {
    if (context.stop.stop_requested()) return Cancelled();
    const auto other = calls_b.find(key);
    if (other == calls_b.end()) continue;
    if (out.calls_size() == kCallsMax) {
      out.add_notes("compared the first " + std::to_string(kCallsMax) +
                    " calls; name a module, steps or ranks for others");
      break;
    }
    const std::uint32_t rank = std::get<1>(key);
    const auto& [attempt_b, of_b] = other->second;
    STATCOLLECT_RETURN_IF_ERROR(values_a.Read(a, of_a.attempt, rank, of_a.document.step));
    STATCOLLECT_RETURN_IF_ERROR(values_b.Read(b, attempt_b, rank, of_b.step));
    AddCall(rank, values_a.Side(of_a.document), values_b.Side(of_b), out);
  }
  NoteUnmatched(a.run(), b.run(), calls_a, calls_b, out);
  NoteUnmatched(b.run(), a.run(), calls_b, calls_a, out);
  NoteUnreadable(a.run(), calls_a, out);
  NoteUnreadable(b.run(), calls_b, out);
  return Status::Ok();
}

}  // namespace statcollect::query
