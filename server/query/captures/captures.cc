#include "server/query/captures/captures.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "common/names.h"
#include "common/shape.h"
#include "common/step_set.h"
#include "server/query/reports.h"
#include "server/query/rows.h"
#include "server/query/run_view.h"
#include "server/query/suggest.h"

namespace statcollect::query {
namespace {

constexpr std::size_t kListed = 8;  // in messages

// "step 3, rank 1, blocks.1.ln2 (output, path '0')".
std::string PlaceOf(const CaptureRow& row) {
  const TensorKey& key = row.def.key;
  std::string place = "step " + std::to_string(row.step) + ", rank " + std::to_string(row.rank) + ", " +
                      Printable(key.name) + " (" + std::string(Name(key.kind));
  if (!key.output_path.empty()) place += ", path '" + Printable(key.output_path) + "'";
  if (key.micro_batch != 0) place += ", micro-batch " + std::to_string(key.micro_batch);
  if (key.call != 0) place += ", call " + std::to_string(key.call);
  if (key.mode != Mode::kTrain) place += ", " + std::string(Name(key.mode));
  return place + ")";
}

std::string PlacesOf(const std::vector<CaptureRow>& rows) {
  std::string places;
  for (std::size_t i = 0; i < rows.size() && i < kListed; ++i)
    places += (i > 0 ? "; " : "") + PlaceOf(rows[i]);
  if (rows.size() > kListed) places += "; and " + std::to_string(rows.size() - kListed) + " more";
  return places;
}

// Everything that one rank of one attempt has captured in these steps.
Status AddRows(Store& store, RunView& view, std::size_t attempt, std::uint32_t rank, const StepSet& wanted,
               std::vector<CaptureRow>* rows) {
  const AttemptMeta& meta = view.attempts()[attempt];
  STATCOLLECT_ASSIGN_OR_RETURN(
      const auto found, store.Captures(meta.id, rank, {.first = wanted.first(), .last = wanted.last()}));
  if (found.empty()) return Status::Ok();
  const auto catalogue = view.Catalogue(attempt, rank);  // after the captures: it has what they need
  if (!catalogue.ok()) return catalogue.status();
  for (const StoredCapture& capture : found) {
    if (!wanted.Contains(capture.step)) continue;
    if (capture.activation >= (*catalogue)->activations.size() ||
        capture.layout >= (*catalogue)->layouts.size()) {
      return {Code::kDataLoss, "list captures of rank " + std::to_string(rank) + ", step " +
                                   std::to_string(capture.step) + ": found a capture of an undefined tensor"};
    }
    if (rows->size() >= kRowsMax) return TooManyRows("captures");
    CaptureRow row{.run = view.run(),
                   .rank = rank,
                   .step = capture.step,
                   .def = (*catalogue)->activations[capture.activation],
                   .layout = (*catalogue)->layouts[capture.layout],
                   .numel = NumelOf((*catalogue)->layouts[capture.layout].shape),
                   .elements = capture.elements,
                   .bytes = 0,
                   .bytes_stored = capture.bytes_stored,
                   .attempt = meta.number,
                   .attempt_id = meta.id};
    row.bytes = row.elements * DTypeBytes(row.layout.dtype);
    rows->push_back(std::move(row));
  }
  return Status::Ok();
}

// All captures of the run's view, without superseded steps, ordered by step, rank and activation.
Result<std::vector<CaptureRow>> AllRows(Store& store, RunView& view, const std::vector<std::uint32_t>& ranks,
                                        const StepSet& wanted, const std::stop_token& stop) {
  std::vector<CaptureRow> rows;
  for (std::size_t attempt = 0; attempt < view.attempts().size(); ++attempt) {
    for (const auto& [rank, meta] : view.ranks(attempt)) {
      if (stop.stop_requested()) return Cancelled();
      if (!IsWanted(ranks, rank)) continue;
      STATCOLLECT_RETURN_IF_ERROR(AddRows(store, view, attempt, rank, wanted, &rows));
    }
  }
  if (view.attempts().size() > 1 && !rows.empty()) {
    STATCOLLECT_ASSIGN_OR_RETURN(const auto owners, view.Steps(wanted));
    std::erase_if(rows, [&](const CaptureRow& row) {
      const auto owner = owners.find(row.step);
      return owner != owners.end() && view.attempts()[owner->second].id != row.attempt_id;
    });
  }
  const auto order = [](const CaptureRow& r) { return std::tuple(r.step, r.rank, r.attempt, r.def.id); };
  std::sort(rows.begin(), rows.end(), [&](const auto& a, const auto& b) { return order(a) < order(b); });
  return rows;
}

bool BelongsTo(const CaptureRequest& request, const CaptureRow& row) {
  return row.attempt_id == request.attempt && IsWanted(request.ranks, row.rank) &&
         request.spec.steps.Contains(row.step) && request.spec.Matches(row.def.key);
}

std::string Reached(std::uint32_t rank, const std::optional<std::uint64_t>& step) {
  if (!step) return "rank " + std::to_string(rank) + " has no step yet";
  return "rank " + std::to_string(rank) + " is at step " + std::to_string(*step);
}

// The agent's reason why there is no capture.
Result<std::optional<std::string>> ReasonOf(Store& store, const CaptureRequest& request, std::uint32_t rank) {
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

Result<CaptureRequestRank> StateOf(Store& store, const CaptureRequest& request, std::uint32_t rank,
                                   const std::optional<std::uint64_t>& last_step,
                                   const std::vector<CaptureRow>& rows, Link link) {
  CaptureRequestRank state{.rank = rank, .state = {}, .why = {}, .last_step = last_step};
  bool any = false, whole = true;
  for (const CaptureRow& row : rows) {
    if (row.rank != rank || !BelongsTo(request, row)) continue;
    any = true;
    whole = whole && row.complete();
  }
  const std::uint64_t step = request.spec.steps.last();
  STATCOLLECT_ASSIGN_OR_RETURN(const auto end,
                               store.StepEnds(request.attempt, rank, {.first = step, .last = step}));
  // An agent sends a step's captures before its end.
  const bool ended = !end.empty() || (last_step && *last_step > step);
  if (any && whole && (ended || link == Link::kEnded)) {
    state.state = "captured";
    return state;
  }
  STATCOLLECT_ASSIGN_OR_RETURN(auto reason, ReasonOf(store, request, rank));
  if (reason) {
    state.state = "missed";
    state.why = *reason;
  } else if (link == Link::kAway) {
    state.state = "away";
    state.why = "it is not connected now and is asked when it reconnects (" + Reached(rank, last_step) + ")";
  } else if (link == Link::kEnded) {
    state.state = "ended";
    state.why = any ? "the rank ended before all chunks had arrived" : "the rank ended, and nothing arrived";
    state.why += " (" + Reached(rank, last_step) + ")";
  } else if (any) {
    state.state = "receiving";
    state.why = "the values are arriving";
  } else if (ended) {
    state.state = "overdue";
    state.why = "step " + std::to_string(step) + " has passed (" + Reached(rank, last_step) +
                ") and the agent has not answered; agents of earlier releases cannot capture";
  } else {
    state.state = "waiting";
    state.why = Reached(rank, last_step);
  }
  return state;
}

}  // namespace

Result<CapturesReport> ListCaptures(Store& store, const CapturesRequest& request, const RankLinks& links,
                                    const std::stop_token& stop) {
  STATCOLLECT_ASSIGN_OR_RETURN(auto view, RunView::Open(store, request.run));
  STATCOLLECT_ASSIGN_OR_RETURN(const auto wanted, StepSet::Parse(request.steps));
  STATCOLLECT_ASSIGN_OR_RETURN(auto requests, ReadCaptureRequests(store, request.run));
  const std::size_t newest = view.attempts().size() - 1;
  std::erase_if(requests, [&](const CaptureRequest& r) {
    return r.attempt != view.attempts()[newest].id || (request.request != 0 && r.id != request.request) ||
           (!request.activation.empty() && r.spec.activation != request.activation);
  });
  if (request.request != 0 && requests.empty()) {
    return Status(Code::kNotFound, "list captures of run '" + request.run + "': there is no request " +
                                       std::to_string(request.request) + " of its newest launch");
  }
  STATCOLLECT_ASSIGN_OR_RETURN(auto rows, AllRows(store, view, request.ranks, wanted, stop));

  CapturesReport report;
  for (CaptureRequest& asked : requests) {
    CaptureRequestRow row{.request = std::move(asked), .ranks = {}};
    for (const std::uint32_t rank : row.request.ranks) {
      if (stop.stop_requested()) return Cancelled();
      if (!IsWanted(request.ranks, rank)) continue;
      const auto meta = view.ranks(newest).find(rank);
      const bool known = meta != view.ranks(newest).end();
      const bool open = links.is_open && links.is_open(row.request.attempt, rank);
      const bool away = known && !meta->second.finished && links.may_come_back &&
                        links.may_come_back(row.request.attempt, rank);
      STATCOLLECT_ASSIGN_OR_RETURN(
          auto state, StateOf(store, row.request, rank, known ? meta->second.last_step : std::nullopt, rows,
                              open   ? Link::kOpen
                              : away ? Link::kAway
                                     : Link::kEnded));
      row.ranks.push_back(std::move(state));
    }
    report.requests.push_back(std::move(row));
  }
  for (CaptureRow& row : rows) {
    if (!request.activation.empty() && row.def.key.name != request.activation) continue;
    if (!IsWanted(request.kinds, row.def.key.kind)) continue;
    if (request.request != 0 && !BelongsTo(report.requests.front().request, row)) continue;
    report.records.push_back(std::move(row));
  }
  return report;
}

namespace {

// The one captured tensor that the request names.
Result<CaptureRow> FindCapture(Store& store, RunView& view, const ReadCaptureRequest& request,
                               const std::string& attempted, const std::stop_token& stop) {
  const auto step = StepSet::Parse(std::to_string(request.step));
  STATCOLLECT_ASSIGN_OR_RETURN(auto rows, AllRows(store, view, {request.rank}, *step, stop));
  std::vector<CaptureRow> found;
  for (CaptureRow& row : rows) {
    const TensorKey& key = row.def.key;
    if (key.name == request.activation && key.micro_batch == request.micro_batch &&
        key.call == request.call && key.mode == request.mode &&
        (!request.kind || key.kind == *request.kind) &&
        (!request.output_path || key.output_path == *request.output_path))
      found.push_back(std::move(row));
  }
  if (found.empty()) {
    STATCOLLECT_ASSIGN_OR_RETURN(auto all, AllRows(store, view, {}, StepSet(), stop));
    std::vector<CaptureRow> near;
    for (const CaptureRow& row : all) {
      if (row.def.key.name == request.activation) near.push_back(row);
    }
    const std::vector<CaptureRow>& listed = near.empty() ? all : near;
    return Status(Code::kNotFound, attempted + ": not captured at step " + std::to_string(request.step) +
                                       ", rank " + std::to_string(request.rank) + " (micro-batch " +
                                       std::to_string(request.micro_batch) + ", call " +
                                       std::to_string(request.call) + ", " + std::string(Name(request.mode)) +
                                       "); captured are: " + (listed.empty() ? "none" : PlacesOf(listed)));
  }
  if (found.size() > 1) {
    return Status(
        Code::kInvalidArgument,
        attempted + ": several match; expected one; give its kind or its output path: " + PlacesOf(found));
  }
  return std::move(found.front());
}

}  // namespace

Status ReadCapture(Store& store, const ReadCaptureRequest& request,
                   const std::function<Status(const CaptureRow&)>& head,
                   const std::function<Status(std::string)>& data, const std::stop_token& stop) {
  const std::string attempted =
      "read capture '" + Printable(request.activation) + "' of run '" + request.run + "'";
  STATCOLLECT_ASSIGN_OR_RETURN(auto view, RunView::Open(store, request.run));
  STATCOLLECT_ASSIGN_OR_RETURN(const auto found, FindCapture(store, view, request, attempted, stop));
  const CaptureRow& row = found;
  if (!row.complete()) {
    return {Code::kFailedPrecondition,
            attempted + ": " + std::to_string(row.bytes_stored) + " of " + std::to_string(row.bytes) +
                " bytes have arrived; expected all of them; wait, or capture it again "
                "if the run has ended"};
  }
  STATCOLLECT_RETURN_IF_ERROR(head(row));
  for (std::uint64_t offset = 0; offset < row.bytes;) {
    if (stop.stop_requested()) return Cancelled();
    STATCOLLECT_ASSIGN_OR_RETURN(auto chunk,
                                 store.CaptureChunkAt(row.attempt_id, row.rank, row.step, row.def.id,
                                                      static_cast<std::uint32_t>(offset)));
    if (chunk.empty() || chunk.size() > row.bytes - offset) {
      return {Code::kDataLoss, attempted + ": the part at byte " + std::to_string(offset) + " has " +
                                   std::to_string(chunk.size()) + " bytes; expected 1.." +
                                   std::to_string(row.bytes - offset) + "; capture it again"};
    }
    offset += chunk.size();
    STATCOLLECT_RETURN_IF_ERROR(data(std::move(chunk)));
  }
  return Status::Ok();
}

Status CheckCanBeCaptured(Store& store, const std::string& run, const CaptureSpec& spec) {
  STATCOLLECT_ASSIGN_OR_RETURN(auto view, RunView::Open(store, run));
  const std::size_t newest = view.attempts().size() - 1;
  std::set<std::string> names, kinds;
  for (const auto& [rank, meta] : view.ranks(newest)) {
    STATCOLLECT_ASSIGN_OR_RETURN(const auto catalogue, view.Catalogue(newest, rank));
    for (const TensorDef& def : catalogue->activations) {
      if (spec.Matches(def.key)) return Status::Ok();
      names.insert(def.key.name);
      if (def.key.name != spec.activation) continue;
      std::string kind(Name(def.key.kind));
      if (!def.key.output_path.empty()) kind += " path '" + Printable(def.key.output_path) + "'";
      if (def.key.micro_batch != 0 || def.key.call != 0)
        kind +=
            " micro-batch " + std::to_string(def.key.micro_batch) + " call " + std::to_string(def.key.call);
      if (def.key.mode != Mode::kTrain) kind += " " + std::string(Name(def.key.mode));
      kinds.insert(kind);
    }
  }
  if (names.empty()) return Status::Ok();  // the run has just begun
  const std::string attempted = "capture " + spec.Describe() + " of run '" + run + "'";
  if (kinds.empty()) {
    return {Code::kNotFound, attempted + ": no rank has seen such an activation; closest: " +
                                 Suggest(spec.activation, {names.begin(), names.end()})};
  }
  std::string seen;
  for (const std::string& kind : kinds) {
    if (seen.size() < 1000) seen += (seen.empty() ? "" : ", ") + kind;
  }
  return {Code::kNotFound,
          attempted + ": the name was seen, but not with this kind or path; it was seen as " + seen};
}

}  // namespace statcollect::query
