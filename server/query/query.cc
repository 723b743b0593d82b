#include "server/query/query.h"

#include <algorithm>
#include <set>
#include <tuple>

#include "common/names.h"
#include "server/query/diff/diff.h"
#include "server/query/event_kinds.h"
#include "server/query/logical/choose.h"
#include "server/query/logical/one_run.h"
#include "server/query/logical/whole_grad_norm.h"
#include "server/query/noise/noise_profile.h"
#include "server/query/noise/noise_store.h"
#include "server/query/rows.h"
#include "server/query/run_view.h"
#include "server/query/suggest.h"

namespace statcollect::query {
namespace {

constexpr std::size_t kEventsShown = 100;

std::string StateOf(bool open, bool finished) {
  return open ? "running" : finished ? "finished" : "interrupted";
}

// Distinct steps. Ordinarily (one attempt, all ranks begin together) the ranks' tallies tell; otherwise the
// steps are read.
Status CountSteps(const RunView& view, RunSummary& summary) {
  bool plain = view.attempts().size() == 1;
  std::optional<std::uint64_t> begin;
  for (std::size_t i = 0; i < view.attempts().size(); ++i) {
    for (const auto& [rank, meta] : view.ranks(i)) {
      if (!meta.first_step || !meta.last_step) continue;
      plain = plain && meta.steps > 0 && (!begin || *begin == *meta.first_step);
      begin = meta.first_step;
      summary.first_step = std::min(summary.first_step.value_or(*meta.first_step), *meta.first_step);
      summary.last_step = std::max(summary.last_step.value_or(*meta.last_step), *meta.last_step);
      summary.steps = std::max(summary.steps, meta.steps);
    }
  }
  if (plain) return Status::Ok();
  auto steps = view.Steps(StepSet());
  if (!steps.ok()) return steps.status();
  summary.steps = steps->size();
  return Status::Ok();
}

Result<RunSummary> Summarise(const RunView& view, const IsStreamOpen& is_stream_open) {
  const std::size_t newest = view.attempts().size() - 1;
  RunSummary summary;
  summary.run = view.run();
  summary.attempts = static_cast<std::uint32_t>(view.attempts().size());
  summary.world_size = view.attempts()[newest].world_size;
  summary.ranks = static_cast<std::uint32_t>(view.ranks(newest).size());
  summary.start_unix_nanos = view.attempts()[newest].start_unix_nanos;
  bool open = false, finished = summary.ranks >= summary.world_size;
  for (std::size_t i = 0; i <= newest; ++i) {
    for (const auto& [rank, meta] : view.ranks(i)) {
      summary.records += meta.records;
      summary.end_unix_nanos = std::max(summary.end_unix_nanos, meta.last_write_unix_nanos);
      for (const auto& [cause, count] : meta.dropped) summary.dropped += count;
      if (i < newest) continue;
      open = open || (is_stream_open && is_stream_open(view.attempts()[i].id, rank));
      finished = finished && meta.finished;
    }
  }
  summary.state = StateOf(open, finished);
  STATCOLLECT_RETURN_IF_ERROR(CountSteps(view, summary));
  return summary;
}

EventRow MakeEvent(const std::string& run, const AttemptMeta& attempt, std::uint32_t rank,
                   EventRecord event) {
  return {.run = run,
          .rank = rank,
          .step = event.step,
          .kind = std::move(event.kind),
          .text = std::move(event.text),
          .unix_nanos = event.unix_nanos,
          .fields = std::move(event.fields),
          .from_collector = event.from_collector,
          .attempt = attempt.number};
}

AttemptInfo Describe(const AttemptMeta& attempt, const std::map<std::uint32_t, RankMeta>& ranks,
                     const IsStreamOpen& is_stream_open) {
  AttemptInfo info{.attempt = attempt.number, .start_unix_nanos = attempt.start_unix_nanos};
  for (const auto& [rank, meta] : ranks) {
    const bool open = is_stream_open && is_stream_open(attempt.id, rank);
    info.ranks.push_back({.rank = rank,
                          .local_rank = meta.info.local_rank,
                          .host = meta.info.host,
                          .pid = meta.info.pid,
                          .state = StateOf(open, meta.finished),
                          .records = meta.records,
                          .stat_records = meta.stat_records,
                          .first_step = meta.first_step,
                          .last_step = meta.last_step,
                          .steps = meta.steps,
                          .durable_seq = meta.durable_seq,
                          .dropped = meta.dropped});
  }
  return info;
}

// Adds notes about the alarms of a run's newest launch: the first NaN, and the rest.
Status NoteAlarms(Store& store, const RunView& view, std::vector<std::string>* notes) {
  const std::size_t newest = view.attempts().size() - 1;
  std::vector<std::pair<std::uint32_t, EventRecord>> alarms;
  for (const auto& [rank, meta] : view.ranks(newest)) {
    auto events = store.Events(view.attempts()[newest].id, rank);
    if (!events.ok()) return events.status();
    for (EventRecord& event : *events) {
      const auto severity = event.fields.find("severity");
      if (event.from_collector && severity != event.fields.end() && severity->second == "alarm")
        alarms.emplace_back(rank, std::move(event));
    }
  }
  const auto place = [](const auto& alarm) { return std::pair(alarm.second.step, alarm.first); };
  std::stable_sort(alarms.begin(), alarms.end(),
                   [&](const auto& x, const auto& y) { return place(x) < place(y); });
  const auto nan = std::find_if(alarms.begin(), alarms.end(),
                                [](const auto& alarm) { return alarm.second.kind == "nan_first_seen"; });
  const auto field = [](const EventRecord& event, const char* name) {
    const auto found = event.fields.find(name);
    return found == event.fields.end() ? std::string("?") : Printable(found->second);
  };
  if (nan != alarms.end()) {
    notes->push_back("first NaN or Inf in " + view.run() + ": step " + std::to_string(nan->second.step) +
                     ", rank " + std::to_string(nan->first) + ", " + field(nan->second, "subject_text"));
  }
  std::map<std::string, std::size_t> others;
  for (const auto& [rank, event] : alarms) {
    if (event.kind != "nan_first_seen") ++others[event.kind];
  }
  std::string text;
  for (const auto& [kind, count] : others)
    text += (text.empty() ? "" : ", ") + std::to_string(count) + " " + Printable(kind);
  if (!text.empty())
    notes->push_back("alarms in " + view.run() + " while it was recorded: " + text + "; statctl events " +
                     view.run());
  return Status::Ok();
}

// Whether a series asks for this activation.
bool Matches(const SeriesRequest& request, const TensorKey& key) {
  return key.name == request.activation && (request.kind == Kind::kUnspecified || key.kind == request.kind) &&
         (!request.output_path || key.output_path == *request.output_path);
}

SeriesPoint MakePoint(const std::string& run, std::uint32_t rank, const TensorKey& key,
                      const StatPoint& point, const Layout& layout) {
  return {.run = run,
          .rank = rank,
          .step = point.step,
          .micro_batch = key.micro_batch,
          .kind = key.kind,
          .activation = key.name,
          .output_path = key.output_path,
          .call = key.call,
          .mode = std::string(Name(key.mode)),
          .stats = MakeSide(point.stats, layout)};
}

// Calls visit(attempt, rank, definition) for everything that the run ever defined.
template <typename Visit>
Status ForEachDefinition(RunView& view, Visit visit) {
  for (std::size_t attempt = 0; attempt < view.attempts().size(); ++attempt) {
    for (const auto& [rank, meta] : view.ranks(attempt)) {
      auto catalogue = view.Catalogue(attempt, rank);
      if (!catalogue.ok()) return catalogue.status();
      for (const TensorDef& def : (*catalogue)->activations) visit(attempt, rank, def);
    }
  }
  return Status::Ok();
}

// Why no definition of the run is asked for.
Status NoActivation(RunView& view, const SeriesRequest& request) {
  std::set<std::string> names;
  STATCOLLECT_RETURN_IF_ERROR(ForEachDefinition(
      view, [&](std::size_t, std::uint32_t, const TensorDef& def) { names.insert(def.key.name); }));
  if (names.contains(request.activation)) {
    return {Code::kNotFound, "series of run '" + view.run() + "': '" + Printable(request.activation) +
                                 "' exists, but not with this kind, output path or rank; relax the filters"};
  }
  return {Code::kNotFound, "series of run '" + view.run() + "': no activation '" +
                               Printable(request.activation) + "'; closest of the " +
                               std::to_string(names.size()) +
                               " there are: " + Suggest(request.activation, {names.begin(), names.end()})};
}

// Calls `take(rank, record)` for the wanted records that `read(attempt, rank, bounds)` gives: by rank and
// step, of each step from the newest attempt that has it: that has tensors or scalars in it, or else records
// of this kind. Request: has run, ranks, steps.
template <typename Request, typename Read, typename Take>
Status ForEachRecord(Store& store, const Request& request, const std::stop_token& stop, const Read& read,
                     const Take& take) {
  auto view = RunView::Open(store, request.run);
  if (!view.ok()) return view.status();
  auto wanted = StepSet::Parse(request.steps);
  if (!wanted.ok()) return wanted.status();
  auto owners = StepOwners::Of(*view, *wanted);
  if (!owners.ok()) return owners.status();
  const StepBounds bounds{.first = wanted->first(), .last = wanted->last()};
  const auto& attempts = view->attempts();
  for (const std::uint32_t rank : view->AllRanks()) {
    if (!IsWanted(request.ranks, rank)) continue;
    using Records = std::decay_t<decltype(*read(0, rank, bounds))>;
    std::map<std::uint64_t, std::pair<std::size_t, Records>> steps;  // with the attempt that they are of
    for (std::size_t attempt = 0; attempt < attempts.size(); ++attempt) {
      if (stop.stop_requested()) return Cancelled();
      if (!view->ranks(attempt).contains(rank)) continue;
      auto records = read(attempts[attempt].id, rank, bounds);
      if (!records.ok()) return records.status();
      for (auto& record : *records) {
        if (!wanted->Contains(record.step)) continue;
        if (!owners->IsOf(attempt, record.step)) continue;
        auto& [of, kept] = steps[record.step];
        if (of != attempt) kept.clear();
        of = attempt;
        kept.push_back(std::move(record));
      }
    }
    for (auto& [step, kept] : steps) {
      for (auto& record : kept.second) STATCOLLECT_RETURN_IF_ERROR(take(rank, record));
    }
  }
  return Status::Ok();
}

Result<std::vector<SeriesPoint>> SeriesOf(RunView& view, const SeriesRequest& request,
                                          const std::stop_token& stop) {
  auto wanted = StepSet::Parse(request.steps);
  if (!wanted.ok()) return wanted.status();
  std::vector<RunView::Series> series;
  STATCOLLECT_RETURN_IF_ERROR(
      ForEachDefinition(view, [&](std::size_t attempt, std::uint32_t rank, const TensorDef& def) {
        if (Matches(request, def.key) && IsWanted(request.ranks, rank))
          series.push_back({.attempt = attempt, .rank = rank, .activation = def.id, .points = {}});
      }));
  if (series.empty()) return NoActivation(view, request);
  std::vector<SeriesPoint> points;
  const auto owners = StepOwners::Of(view, *wanted);
  if (!owners.ok()) return owners.status();
  STATCOLLECT_RETURN_IF_ERROR(
      view.ReadSeries(series, {.first = wanted->first(), .last = wanted->last()}, stop));
  if (stop.stop_requested()) return Cancelled();
  for (const RunView::Series& one : series) {
    auto catalogue = view.Catalogue(one.attempt, one.rank);
    if (!catalogue.ok()) return catalogue.status();
    const TensorKey& key = (*catalogue)->activations[one.activation].key;
    for (const StatPoint& point : one.points) {
      if (!wanted->Contains(point.step) || !owners->IsOf(one.attempt, point.step)) continue;
      if (points.size() >= kRowsMax) return TooManyRows("series");
      points.push_back(MakePoint(request.run, one.rank, key, point, (*catalogue)->layouts[point.layout]));
    }
  }
  const auto key = [](const SeriesPoint& p) {
    return std::tie(p.kind, p.output_path, p.rank, p.step, p.micro_batch, p.call);
  };
  const auto before = [&](const SeriesPoint& x, const SeriesPoint& y) { return key(x) < key(y); };
  if (!std::is_sorted(points.begin(), points.end(), before))
    std::stable_sort(points.begin(), points.end(), before);
  return points;
}

}  // namespace

QueryEngine::QueryEngine(Store& store, IsStreamOpen is_stream_open, IsStreamOpen may_come_back)
    : store_(store), is_stream_open_(std::move(is_stream_open)), may_come_back_(std::move(may_come_back)) {}

Result<std::vector<RunSummary>> QueryEngine::ListRuns() const {
  auto runs = store_.ListRuns();
  if (!runs.ok()) return runs.status();
  std::vector<RunSummary> summaries;
  for (const std::string& run : *runs) {
    auto view = RunView::Open(store_, run);
    if (!view.ok() && view.status().code() == Code::kNotFound) continue;  // removed meanwhile
    if (!view.ok()) return view.status();
    auto summary = Summarise(*view, is_stream_open_);
    if (!summary.ok()) return summary.status();
    summaries.push_back(*std::move(summary));
  }
  return summaries;
}

Result<RunDetail> QueryEngine::GetRun(const std::string& run) const {
  auto view = RunView::Open(store_, run);
  if (!view.ok()) return view.status();
  auto summary = Summarise(*view, is_stream_open_);
  if (!summary.ok()) return summary.status();
  RunDetail detail{.summary = *std::move(summary)};
  const std::size_t newest = view->attempts().size() - 1;
  for (std::size_t i = 0; i <= newest; ++i) {
    detail.attempts.push_back(Describe(view->attempts()[i], view->ranks(i), is_stream_open_));
  }
  for (const auto& [rank, meta] : view->ranks(newest)) {
    auto events = store_.Events(view->attempts()[newest].id, rank);
    if (!events.ok()) return events.status();
    // Events of the collector come first, so that frequent events of agents do not crowd them out.
    std::stable_partition(events->begin(), events->end(),
                          [](const auto& event) { return event.from_collector; });
    for (EventRecord& event : *events) {
      if (detail.events.size() < kEventsShown)
        detail.events.push_back(MakeEvent(run, view->attempts()[newest], rank, std::move(event)));
    }
  }
  if (view->ranks(newest).empty()) return detail;
  const auto& [rank, meta] = *view->ranks(newest).begin();
  detail.config = meta.info.config;
  auto catalogue = view->Catalogue(newest, rank);
  if (!catalogue.ok()) return catalogue.status();
  detail.activations = (*catalogue)->activations.size();
  std::map<Kind, std::uint64_t> kinds;
  for (const TensorDef& def : (*catalogue)->activations) ++kinds[def.key.kind];
  for (const auto& [kind, count] : kinds) detail.kinds.push_back({.kind = kind, .activations = count});
  return detail;
}

Result<DiffReport> QueryEngine::Diff(const DiffRequest& request, const OnProgress& progress,
                                     const std::stop_token& stop) const {
  auto a = RunView::Open(store_, request.run_a);
  if (!a.ok()) return a.status();
  auto b = RunView::Open(store_, request.run_b);
  if (!b.ok()) return b.status();
  auto logical = ChooseLogical(store_, *a, *b, request);
  if (!logical.ok()) return logical.status();
  if (*logical) return DiffLogical(**logical, *a, *b, request, progress, stop);
  auto noise = OpenNoise(store_, *a, request);
  if (!noise.ok()) return noise.status();
  auto report = DiffRuns(*a, *b, request, is_stream_open_, noise->floor.get(), progress, stop);
  if (!report.ok()) return report;
  report->noise = std::move(noise->source);
  for (const RunView* view : {&*a, &*b})
    STATCOLLECT_RETURN_IF_ERROR(NoteAlarms(store_, *view, &report->notes));
  return report;
}

Result<DiffReport> QueryEngine::DiffLogical(const LogicalPair& pair, const RunView& a, const RunView& b,
                                            const DiffRequest& request, const OnProgress& progress,
                                            const std::stop_token& stop) const {
  auto view_a = RunView::Open(*pair.a, request.run_a);
  if (!view_a.ok()) return view_a.status();
  auto view_b = RunView::Open(*pair.b, request.run_b);
  if (!view_b.ok()) return view_b.status();
  DiffRequest as_models = request;
  as_models.logical = true;
  auto report = DiffRuns(*view_a, *view_b, as_models, is_stream_open_, nullptr, progress, stop);
  if (!report.ok()) return report;
  DescribeRanks(pair, a, b, &*report);
  for (const RunView* view : {&a, &b}) STATCOLLECT_RETURN_IF_ERROR(NoteAlarms(store_, *view, &report->notes));
  return report;
}

Result<NoiseSummary> QueryEngine::SaveNoise(const SaveNoiseRequest& request, const OnProgress& progress,
                                            const std::stop_token& stop) const {
  return SaveNoiseOf(store_, request, progress, stop);
}

Result<NoiseSummary> QueryEngine::GetNoise(const std::string& run, const std::stop_token&) const {
  auto view = RunView::Open(store_, run);
  if (!view.ok()) return view.status();
  return StoredNoise(store_, run);
}

Status QueryEngine::DeleteNoise(const std::string& run) const {
  auto stored = GetNoise(run);
  if (!stored.ok()) return stored.status();
  return store_.PutDocument(run, kNoiseDocument, std::nullopt);
}

Result<std::vector<SeriesPoint>> QueryEngine::GetSeries(const SeriesRequest& request,
                                                        const std::stop_token& stop) const {
  auto view = RunView::Open(store_, request.run);
  if (!view.ok()) return view.status();
  if (request.by_rank || !request.ranks.empty()) return SeriesOf(*view, request, stop);
  auto whole = OpenIfCut(store_, *view);
  if (!whole.ok()) return whole.status();
  const auto is_asked = [&](const TensorName& tensor) { return tensor.name == request.activation; };
  if (!*whole || std::any_of((*whole)->cut().unknown.begin(), (*whole)->cut().unknown.end(), is_asked))
    return SeriesOf(*view, request, stop);
  auto of_whole = RunView::Open(**whole, request.run);
  if (!of_whole.ok()) return of_whole.status();
  auto points = SeriesOf(*of_whole, request, stop);
  if (points.ok()) DescribeRanks(**whole, *points);
  return points;
}

Result<std::vector<ScalarRow>> QueryEngine::ListScalars(const ScalarsRequest& request,
                                                        const std::stop_token& stop) const {
  if (request.name == kGradNorm && !request.by_rank && request.ranks.empty()) {
    auto whole = GradNormOfWhole(request, stop);
    if (!whole.ok()) return whole.status();
    if (*whole) return **std::move(whole);
  }
  std::vector<ScalarRow> rows;
  std::set<std::string> names;
  STATCOLLECT_RETURN_IF_ERROR(ForEachRecord(
      store_, request, stop,
      [&](AttemptId attempt, std::uint32_t rank, StepBounds steps) {
        return store_.Scalars(attempt, rank, steps);
      },
      [&](std::uint32_t rank, ScalarRecord& scalar) {
        names.insert(scalar.name);
        if (!request.name.empty() && scalar.name != request.name) return Status::Ok();
        if (rows.size() >= kRowsMax) return TooManyRows("scalars");
        rows.push_back(
            {request.run, rank, scalar.step, scalar.micro_batch, std::move(scalar.name), scalar.value});
        return Status::Ok();
      }));
  if (rows.empty() && !request.name.empty()) {
    return Status(Code::kNotFound,
                  "scalars of run '" + request.run + "': no scalar '" + Printable(request.name) +
                      "' there; closest: " + Suggest(request.name, {names.begin(), names.end()}));
  }
  const auto key = [](const ScalarRow& r) { return std::tie(r.name, r.rank, r.step, r.micro_batch); };
  std::stable_sort(rows.begin(), rows.end(), [&](const auto& a, const auto& b) { return key(a) < key(b); });
  return rows;
}

Result<std::optional<std::vector<ScalarRow>>> QueryEngine::GradNormOfWhole(
    const ScalarsRequest& request, const std::stop_token& stop) const {
  auto view = RunView::Open(store_, request.run);
  if (!view.ok()) return view.status();
  auto steps = StepSet::Parse(request.steps);
  if (!steps.ok()) return steps.status();
  return WholeGradNorm(store_, *view, *steps, stop);
}

Result<std::vector<MemoryRow>> QueryEngine::ListMemory(const MemoryRequest& request,
                                                       const std::stop_token& stop) const {
  std::vector<MemoryRow> rows;
  STATCOLLECT_RETURN_IF_ERROR(ForEachRecord(
      store_, request, stop,
      [&](AttemptId attempt, std::uint32_t rank, StepBounds steps) {
        return store_.Memory(attempt, rank, steps);
      },
      [&](std::uint32_t rank, MemoryRecord& record) {
        if (record.module.empty() == request.modules) return Status::Ok();
        if (rows.size() >= kRowsMax) return TooManyRows("memory");
        rows.push_back({request.run, rank, std::move(record)});
        return Status::Ok();
      }));
  return rows;
}

Result<std::vector<DensityRow>> QueryEngine::ListDensity(const DensityRequest& request,
                                                         const std::stop_token& stop) const {
  std::vector<DensityRow> rows;
  std::set<std::string> inputs;
  STATCOLLECT_RETURN_IF_ERROR(ForEachRecord(
      store_, request, stop,
      [&](AttemptId attempt, std::uint32_t rank, StepBounds steps) {
        return store_.Densities(attempt, rank, steps);
      },
      [&](std::uint32_t rank, DensityRecord& record) {
        inputs.insert(record.input);
        if (!request.input.empty() && record.input != request.input) return Status::Ok();
        if (rows.size() >= kRowsMax) return TooManyRows("density");
        rows.push_back({request.run, rank, std::move(record)});
        return Status::Ok();
      }));
  if (rows.empty() && !request.input.empty()) {
    return Status(Code::kNotFound,
                  "density of run '" + request.run + "': no input '" + Printable(request.input) +
                      "' there; closest: " + Suggest(request.input, {inputs.begin(), inputs.end()}));
  }
  return rows;
}

Result<std::vector<EventRow>> QueryEngine::ListEvents(const EventsRequest& request,
                                                      const std::stop_token& stop) const {
  auto view = RunView::Open(store_, request.run);
  if (!view.ok()) return view.status();
  std::vector<EventRow> rows;
  std::set<std::string> kinds;
  for (const std::uint32_t rank : view->AllRanks()) {
    if (!IsWanted(request.ranks, rank)) continue;
    for (std::size_t attempt = 0; attempt < view->attempts().size(); ++attempt) {
      if (stop.stop_requested()) return Cancelled();
      if (!view->ranks(attempt).contains(rank)) continue;
      auto events = store_.Events(view->attempts()[attempt].id, rank);
      if (!events.ok()) return events.status();
      for (EventRecord& event : *events) {
        kinds.insert(event.kind);
        if (!request.Wants(rank, event)) continue;
        if (rows.size() >= kRowsMax) return TooManyRows("events");
        rows.push_back(MakeEvent(request.run, view->attempts()[attempt], rank, std::move(event)));
      }
    }
  }
  if (rows.empty()) STATCOLLECT_RETURN_IF_ERROR(CheckEventKinds(request.run, request.kinds, kinds));
  return rows;
}

Result<CapturesReport> QueryEngine::ListCaptures(const CapturesRequest& request,
                                                 const std::stop_token& stop) const {
  return query::ListCaptures(store_, request, {is_stream_open_, may_come_back_}, stop);
}

Status QueryEngine::ReadCapture(const ReadCaptureRequest& request,
                                const std::function<Status(const CaptureRow&)>& head,
                                const std::function<Status(std::string)>& data,
                                const std::stop_token& stop) const {
  return query::ReadCapture(store_, request, head, data, stop);
}

Status QueryEngine::CheckCanBeCaptured(const std::string& run, const CaptureSpec& spec) const {
  return query::CheckCanBeCaptured(store_, run, spec);
}

Result<std::vector<ExponentRow>> QueryEngine::ListExponents(const ExponentsRequest& request,
                                                            const std::stop_token& stop) const {
  return query::ListExponents(store_, request, stop);
}

Status QueryEngine::ReadRecords(const RecordsRequest& request, const OnRecords& take,
                                const std::stop_token& stop) const {
  return query::ReadRecords(store_, request, take, stop);
}

Result<TopReport> QueryEngine::GetTop(const TopRequest& request, const std::stop_token& stop) const {
  auto view = RunView::Open(store_, request.run);
  if (!view.ok()) return view.status();
  if (request.by_rank || !request.ranks.empty()) return FindTop(*view, request, stop);
  auto whole = OpenIfCut(store_, *view);
  if (!whole.ok()) return whole.status();
  return *whole ? FindTopOfWhole(**whole, *view, request, stop) : FindTop(*view, request, stop);
}

Result<ProposeMapReport> QueryEngine::ProposeMap(const ProposeMapRequest& request,
                                                 const std::stop_token& stop) const {
  auto a = RunView::Open(store_, request.run_a);
  if (!a.ok()) return a.status();
  auto b = RunView::Open(store_, request.run_b);
  if (!b.ok()) return b.status();
  const DiffRequest as_diff{.run_a = request.run_a, .run_b = request.run_b};
  auto logical = ChooseLogical(store_, *a, *b, as_diff);
  if (!logical.ok()) return logical.status();
  if (!*logical) return ProposeNames(*a, *b, stop);
  auto view_a = RunView::Open(*(*logical)->a, request.run_a);
  if (!view_a.ok()) return view_a.status();
  auto view_b = RunView::Open(*(*logical)->b, request.run_b);
  if (!view_b.ok()) return view_b.status();
  return ProposeNames(*view_a, *view_b, stop);
}

Result<ConfigReport> QueryEngine::CompareConfig(const ConfigRequest& request, const std::stop_token&) const {
  auto a = RunView::Open(store_, request.run_a);
  if (!a.ok()) return a.status();
  if (request.run_b.empty()) return ReportConfig(*a, nullptr, request.all);
  auto b = RunView::Open(store_, request.run_b);
  if (!b.ok()) return b.status();
  return ReportConfig(*a, &*b, request.all);
}

Result<RanksReport> QueryEngine::CheckRanks(const RanksRequest& request, const OnProgress& progress,
                                            const std::stop_token& stop) const {
  auto view = RunView::Open(store_, request.run);
  if (!view.ok()) return view.status();
  return query::CheckRanks(*view, request, is_stream_open_, progress, stop);
}

}  // namespace statcollect::query
