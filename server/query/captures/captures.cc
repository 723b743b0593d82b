#include "server/query/captures/captures.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "common/names.h"
#include "common/shape.h"
#include "common/step_set.h"
#include "server/query/each_record.h"
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
  std::string place = "step " + std::to_string(row.step) + ", rank " + std::to_string(row.rank) +
                      ", " + Printable(key.name) + " (" + std::string(Name(key.kind));
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

}  // namespace

Result<std::vector<CaptureRow>> FindCaptures(RecordReader& store, RunView& view,
                                             const std::vector<std::uint32_t>& ranks,
                                             const StepSet& wanted) {
  std::vector<CaptureRow> rows;
  const auto add = [&](std::size_t attempt, std::uint32_t rank,
                       const StoredCapture& capture) -> Status {
    if (rows.size() >= kRowsMax) return TooManyRows("captures");
    STATCOLLECT_ASSIGN_OR_RETURN(const auto catalogue, view.CatalogueOf(attempt, rank, capture));
    const Layout& layout = catalogue->layouts[capture.layout];
    rows.push_back({.run = view.run(),
                    .rank = rank,
                    .step = capture.step,
                    .def = catalogue->activations[capture.activation],
                    .layout = layout,
                    .numel = NumelOf(layout.shape),
                    .elements = capture.elements,
                    .bytes = capture.elements * DTypeBytes(layout.dtype),
                    .bytes_stored = capture.bytes_stored,
                    .attempt = view.attempts()[attempt].number,
                    .attempt_id = view.attempts()[attempt].id});
    return Status::Ok();
  };
  STATCOLLECT_RETURN_IF_ERROR(ForEachRecord<StoredCapture>(store, view, ranks, wanted, add));
  const auto order = [](const CaptureRow& r) {
    return std::tuple(r.step, r.rank, r.attempt, r.def.id);
  };
  std::sort(rows.begin(), rows.end(),
            [&](const auto& a, const auto& b) { return order(a) < order(b); });
  return rows;
}

namespace {

// The one captured tensor that the request names.
Result<CaptureRow> FindCapture(RecordReader& store, RunView& view,
                               const ReadCaptureRequest& request, const std::string& attempted) {
  const auto step = StepSet::Parse(std::to_string(request.step));
  STATCOLLECT_ASSIGN_OR_RETURN(auto rows, FindCaptures(store, view, {request.rank}, *step));
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
    STATCOLLECT_ASSIGN_OR_RETURN(auto all, FindCaptures(store, view, {}, StepSet()));
    std::vector<CaptureRow> near;
    for (const CaptureRow& row : all) {
      if (row.def.key.name == request.activation) near.push_back(row);
    }
    const std::vector<CaptureRow>& listed = near.empty() ? all : near;
    return Status(Code::kNotFound,
                  attempted + ": not captured at step " + std::to_string(request.step) + ", rank " +
                      std::to_string(request.rank) + " (micro-batch " +
                      std::to_string(request.micro_batch) + ", call " +
                      std::to_string(request.call) + ", " + std::string(Name(request.mode)) +
                      "); captured are: " + (listed.empty() ? "none" : PlacesOf(listed)));
  }
  if (found.size() > 1) {
    return Status(Code::kInvalidArgument,
                  attempted + ": several match; expected one; give its kind or its output path: " +
                      PlacesOf(found));
  }
  return std::move(found.front());
}

}  // namespace

Status ReadCapture(RecordReader& store, const ReadCaptureRequest& request,
                   const std::function<Status(const CaptureRow&)>& head,
                   const std::function<Status(std::string)>& data, const std::stop_token& stop) {
  const std::string attempted =
      "read capture '" + Printable(request.activation) + "' of run '" + request.run + "'";
  STATCOLLECT_ASSIGN_OR_RETURN(auto view, RunView::Open(store, request.run));
  STATCOLLECT_ASSIGN_OR_RETURN(const auto row, FindCapture(store, view, request, attempted));
  if (!row.complete()) {
    return {Code::kFailedPrecondition, attempted + ": " + std::to_string(row.bytes_stored) +
                                           " of " + std::to_string(row.bytes) +
                                           " bytes have arrived; expected all of them; wait, or "
                                           "capture it again if the run has ended"};
  }
  STATCOLLECT_RETURN_IF_ERROR(head(row));
  for (std::uint64_t offset = 0; offset < row.bytes;) {
    if (stop.stop_requested()) return Cancelled();
    STATCOLLECT_ASSIGN_OR_RETURN(
        auto chunk, store.CaptureChunkAt(row.attempt_id, row.rank, row.step, row.def.id,
                                         static_cast<std::uint32_t>(offset)));
    if (chunk.empty() || chunk.size() > row.bytes - offset) {
      return {Code::kDataLoss, attempted + ": the part at byte " + std::to_string(offset) +
                                   " has " + std::to_string(chunk.size()) + " bytes; expected 1.." +
                                   std::to_string(row.bytes - offset) + "; capture it again"};
    }
    offset += chunk.size();
    STATCOLLECT_RETURN_IF_ERROR(data(std::move(chunk)));
  }
  return Status::Ok();
}

Status CheckCanBeCaptured(RecordReader& store, const std::string& run, const CaptureSpec& spec) {
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
        kind += " micro-batch " + std::to_string(def.key.micro_batch) + " call " +
                std::to_string(def.key.call);
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
  return {
      Code::kNotFound,
      attempted + ": the name was seen, but not with this kind or path; it was seen as " + seen};
}

}  // namespace statcollect::query
