#include "server/query/answers/captures.h"

#include <cstddef>
#include <optional>
#include <utility>

#include "common/names.h"
#include "common/step_set.h"
#include "server/query/answers/message_parts.h"
#include "server/query/captures/captures.h"
#include "server/query/rows.h"
#include "server/query/run_view.h"
#include "server/store/capture_requests.h"

namespace statcollect::query {
namespace {

bool BelongsTo(const CaptureRequest& request, const CaptureRow& row) {
  return row.attempt_id == request.attempt && IsWanted(request.ranks, row.rank) &&
         request.spec.steps.Contains(row.step) && request.spec.Matches(row.def.key);
}

std::string Reached(std::uint32_t rank, const std::optional<std::uint64_t>& step) {
  if (!step) return "rank " + std::to_string(rank) + " has no step yet";
  return "rank " + std::to_string(rank) + " is at step " + std::to_string(*step);
}

// The agent's reason why there is no capture.
Result<std::optional<std::string>> ReasonOf(RecordReader& store, const CaptureRequest& request,
                                            std::uint32_t rank) {
  STATCOLLECT_ASSIGN_OR_RETURN(const auto events, store.Events(request.attempt, rank));
  for (const EventRecord& event : events) {
    if (event.kind != "capture_missed") continue;
    const auto id = event.fields.find("request");
    if (id != event.fields.end() && id->second == std::to_string(request.id))
      return std::optional(event.text);
  }
  return std::optional<std::string>();
}

enum class Link { kOpen, kAway, kEnded };

Result<v1::CaptureRequestRank> StateOf(RecordReader& store, const CaptureRequest& request,
                                       std::uint32_t rank,
                                       const std::optional<std::uint64_t>& last_step,
                                       const std::vector<CaptureRow>& rows, Link link) {
  v1::CaptureRequestRank state;
  state.set_rank(rank);
  if (last_step) state.set_last_step(*last_step);
  bool any = false, whole = true;
  for (const CaptureRow& row : rows) {
    if (row.rank != rank || !BelongsTo(request, row)) continue;
    any = true;
    whole = whole && row.complete();
  }
  const std::uint64_t step = request.spec.steps.last();
  STATCOLLECT_ASSIGN_OR_RETURN(
      const auto end, store.StepEnds(request.attempt, rank, {.first = step, .last = step}));
  // An agent sends a step's captures before its end.
  const bool ended = !end.empty() || (last_step && *last_step > step);
  const auto is = [&](const char* what, const std::string& why = {}) {
    state.set_state(what);
    state.set_why(why);
    return state;
  };
  if (any && whole && (ended || link == Link::kEnded)) return is("captured");
  STATCOLLECT_ASSIGN_OR_RETURN(auto reason, ReasonOf(store, request, rank));
  if (reason) return is("missed", *reason);
  const std::string reached = Reached(rank, last_step);
  if (link == Link::kAway)
    return is("away", "it is not connected now and is asked when it reconnects (" + reached + ")");
  if (link == Link::kEnded) {
    const std::string why = any ? "the rank ended before all chunks had arrived"
                                : "the rank ended, and nothing arrived";
    return is("ended", why + " (" + reached + ")");
  }
  if (any) return is("receiving", "the values are arriving");
  if (ended) {
    return is("overdue",
              "step " + std::to_string(step) + " has passed (" + reached +
                  ") and the agent has not answered; agents of earlier releases cannot capture");
  }
  return is("waiting", reached);
}

void FillRequest(const CaptureRequest& request, v1::CaptureRequestRow& out) {
  const CaptureSpec& spec = request.spec;
  out.set_request(request.id);
  out.set_activation(spec.activation);
  if (spec.kind) out.set_kind(static_cast<v1::Kind>(*spec.kind));
  if (spec.output_path) out.set_output_path(*spec.output_path);
  out.set_micro_batch(spec.micro_batch);
  out.set_call(spec.call);
  out.set_mode(std::string(Name(spec.mode)));
  out.set_step(spec.steps.last());
  out.set_bytes_max(spec.bytes_max);
  out.set_asked_unix_nanos(request.asked_unix_nanos);
}

// Of the newest launch, oldest first. kNotFound: there is no such one.
Result<std::vector<CaptureRequest>> RequestsOf(RecordReader& store, const RunView& view,
                                               const CapturesRequest& wanted) {
  STATCOLLECT_ASSIGN_OR_RETURN(auto requests, ReadCaptureRequests(store, wanted.run));
  std::erase_if(requests, [&](const CaptureRequest& r) {
    return r.attempt != view.attempts().back().id ||
           (wanted.request != 0 && r.id != wanted.request) ||
           (!wanted.activation.empty() && r.spec.activation != wanted.activation);
  });
  if (wanted.request == 0 || !requests.empty()) return requests;
  return Status(Code::kNotFound, "list captures of run '" + wanted.run + "': there is no request " +
                                     std::to_string(wanted.request) + " of its newest launch");
}

Status AddRanks(const Context& context, const RunView& view, const CaptureRequest& asked,
                const std::vector<std::uint32_t>& wanted, const std::vector<CaptureRow>& rows,
                v1::CaptureRequestRow& out) {
  const auto& ranks = view.ranks(view.attempts().size() - 1);
  const RankLinks& links = context.links;
  for (const std::uint32_t rank : asked.ranks) {
    if (context.stop.stop_requested()) return Cancelled();
    if (!IsWanted(wanted, rank)) continue;
    const auto meta = ranks.find(rank);
    const bool known = meta != ranks.end();
    const bool open = links.is_open && links.is_open(asked.attempt, rank);
    const bool away = known && !meta->second.finished && links.may_come_back &&
                      links.may_come_back(asked.attempt, rank);
    const Link link = open ? Link::kOpen : away ? Link::kAway : Link::kEnded;
    std::optional<std::uint64_t> last_step;
    if (known) last_step = meta->second.last_step;
    STATCOLLECT_ASSIGN_OR_RETURN(*out.add_ranks(),
                                 StateOf(context.store, asked, rank, last_step, rows, link));
  }
  return Status::Ok();
}

}  // namespace

Result<CapturesRequest> FromWire(const v1::ListCapturesRequest& request) {
  auto wanted = SelectionFromWire<CapturesRequest>(request);
  if (wanted.ok()) wanted->request = request.request();
  return wanted;
}

void ToWire(const CaptureRow& row, v1::CaptureRow& out) {
  FillTensor(row, row.step, out);
  out.set_numel(row.numel);
  out.set_elements(row.elements);
  out.set_bytes(row.bytes);
  out.set_bytes_stored(row.bytes_stored);
  out.set_complete(row.complete());
}

Status ListCaptures(const Context& context, const CapturesRequest& request,
                    v1::ListCapturesResponse& out) {
  STATCOLLECT_ASSIGN_OR_RETURN(auto view, RunView::Open(context.store, request.run));
  STATCOLLECT_ASSIGN_OR_RETURN(const auto wanted, StepSet::Parse(request.steps));
  STATCOLLECT_ASSIGN_OR_RETURN(const auto requests, RequestsOf(context.store, view, request));
  STATCOLLECT_ASSIGN_OR_RETURN(const auto rows,
                               FindCaptures(context.store, view, request.ranks, wanted));
  for (const CaptureRequest& asked : requests) {
    v1::CaptureRequestRow& added = *out.add_requests();
    FillRequest(asked, added);
    STATCOLLECT_RETURN_IF_ERROR(AddRanks(context, view, asked, request.ranks, rows, added));
  }
  for (const CaptureRow& row : rows) {
    if (!request.activation.empty() && row.def.key.name != request.activation) continue;
    if (!IsWanted(request.kinds, row.def.key.kind)) continue;
    if (request.request != 0 && !BelongsTo(requests.front(), row)) continue;
    ToWire(row, *out.add_records());
  }
  return Status::Ok();
}

}  // namespace statcollect::query
