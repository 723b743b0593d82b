#include "server/query/query.h"

#include <algorithm>
#include <deque>
#include <set>

#include "common/names.h"
#include "common/project.h"
#include "common/text.h"
#include "server/query/diff/diff.h"
#include "server/query/event_kinds.h"
#include "server/query/logical/choose.h"
#include "server/query/noise/noise_profile.h"
#include "server/query/noise/noise_store.h"
#include "server/query/ranks/differing_replicas.h"
#include "server/query/ranks/own_means.h"
#include "server/query/rows.h"
#include "server/query/run_summary.h"
#include "server/query/run_view.h"
#include "server/query/tokens/routers.h"

namespace statcollect::query {
namespace {

// Where rounding was known from: twins that measured nothing have no size.
void AddNoise(KnownNoise noise, DiffReport& report) {
  report.noise = std::move(noise.source);
  if (report.noise && report.twins_unmoved) report.noise->scale.clear();
  report.notes.insert(report.notes.end(), noise.notes.begin(), noise.notes.end());
}

// Adds notes about the alarms of a run's newest launch: the first NaN, and the rest.
Status NoteAlarms(RecordReader& store, const RunView& view, std::vector<std::string>* notes) {
  const std::size_t newest = view.attempts().size() - 1;
  std::vector<std::pair<std::uint32_t, EventRecord>> alarms;
  for (const auto& [rank, meta] : view.ranks(newest)) {
    Visitor<EventRecord> visitor;
    visitor.take = [&, of = rank](EventRecord event) {
      if (IsAlarm(event)) alarms.emplace_back(of, std::move(event));
      return Status::Ok();
    };
    STATCOLLECT_RETURN_IF_ERROR(store.Visit(view.attempts()[newest].id, rank, {}, visitor));
  }
  const auto place = [](const auto& alarm) { return std::pair(alarm.second.step, alarm.first); };
  std::stable_sort(alarms.begin(), alarms.end(),
                   [&](const auto& x, const auto& y) { return place(x) < place(y); });
  const auto nan = std::find_if(alarms.begin(), alarms.end(), [](const auto& alarm) {
    return alarm.second.kind == "nan_first_seen";
  });
  const auto field = [](const EventRecord& event, const char* name) {
    const auto found = event.fields.find(name);
    return found == event.fields.end() ? std::string("?") : Printable(found->second);
  };
  if (nan != alarms.end()) {
    notes->push_back("first NaN or Inf in " + view.run() + ": step " +
                     std::to_string(nan->second.step) + ", rank " + std::to_string(nan->first) +
                     ", " + field(nan->second, "subject_text"));
  }
  std::map<std::string, std::size_t> others;
  for (const auto& [rank, event] : alarms) {
    if (event.kind != "nan_first_seen") ++others[event.kind];
  }
  std::string text;
  for (const auto& [kind, count] : others)
    text += (text.empty() ? "" : ", ") + std::to_string(count) + " " + Printable(kind);
  if (!text.empty())
    notes->push_back("alarms in " + view.run() + " while it was recorded: " + text +
                     "; statctl show " + view.run() + " --events");
  return Status::Ok();
}

// Opens repeats of a run as the run was put together, or as recorded where `run` is null; `opened`
// keeps what they read.
RepeatNoise::OpenRun OpenAs(RecordReader& store, const LogicalRun* run,
                            std::vector<std::unique_ptr<LogicalRun>>& opened) {
  return [&store, run, &opened](const std::string& name) -> Result<RunView> {
    if (run == nullptr) return RunView::Open(store, name);
    STATCOLLECT_ASSIGN_OR_RETURN(auto repeat, LogicalRun::Open(store, name));
    repeat->ChooseAs(*run);
    return RunView::Open(*opened.emplace_back(std::move(repeat)), name);
  };
}

}  // namespace

QueryEngine::QueryEngine(DocumentStore& store, IsStreamOpen is_stream_open,
                         IsStreamOpen may_come_back, std::uint64_t read_bytes_max)
    : store_(store),
      links_{.is_open = std::move(is_stream_open), .may_come_back = std::move(may_come_back)},
      read_bytes_max_(read_bytes_max) {}

std::shared_ptr<const QueryEngine> QueryEngine::Of(const std::string& project) const {
  auto engine = std::make_shared<QueryEngine>(*this);
  engine->project_ = project;
  return engine;
}

Result<std::vector<std::string>> QueryEngine::ListProjects(const std::stop_token& stop) const {
  LimitedStore store = Limited(stop, read_bytes_max_);
  STATCOLLECT_ASSIGN_OR_RETURN(const auto runs, store.ListRuns());
  std::set<std::string> projects;
  for (const std::string& run : runs) projects.emplace(SplitRun(run).project);
  return std::vector<std::string>(projects.begin(), projects.end());
}

Result<RunSummary> QueryEngine::Summary(const std::string& run, const std::stop_token& stop) const {
  LimitedStore store = Limited(stop, read_bytes_max_);
  STATCOLLECT_ASSIGN_OR_RETURN(auto view, RunView::Open(store, run));
  return Summarise(view, links_.is_open);
}

Result<DiffReport> QueryEngine::Diff(const DiffRequest& request, const OnProgress& progress,
                                     const std::stop_token& stop) const {
  LimitedStore store = Limited(stop, read_bytes_max_);
  STATCOLLECT_ASSIGN_OR_RETURN(auto a, RunView::Open(store, request.run_a));
  STATCOLLECT_ASSIGN_OR_RETURN(auto b, RunView::Open(store, request.run_b));
  std::vector<RunSummary> before;
  for (const RunView* view : {&a, &b}) {
    if (request.heat_map_columns == 0) break;
    STATCOLLECT_ASSIGN_OR_RETURN(auto summary, Summarise(*view, links_.is_open));
    before.push_back(std::move(summary));
  }
  auto routers = CompareRouters(store,
                                {.run_a = request.run_a,
                                 .run_b = request.run_b,
                                 .map = request.map,
                                 .steps = request.steps,
                                 .noise = request.noise},
                                stop);
  if (!routers.ok() && routers.status().code() != Code::kResourceExhausted) return routers.status();
  DiffRequest asked = request;
  if (routers.ok()) asked.near_ties = std::move(routers->near_ties);
  auto report = DiffViews(store, a, b, std::move(asked), progress, stop);
  if (report.ok() && routers.ok()) {
    report->routers = std::move(routers->routers);
  } else if (report.ok()) {
    report->notes.push_back("the routers were not compared: " + routers.status().message());
  }
  if (report.ok()) STATCOLLECT_RETURN_IF_ERROR(CheckReplicas(a, b, request, stop, *report));
  if (report.ok() && report->root) STATCOLLECT_RETURN_IF_ERROR(AddOwnMeans(a, b, stop, *report));
  if (report.ok() && report->heat_map) report->heat_map->runs = std::move(before);
  return report;
}

Result<DiffReport> QueryEngine::DiffViews(RecordReader& store, RunView& a, RunView& b,
                                          DiffRequest request, const OnProgress& progress,
                                          const std::stop_token& stop) const {
  STATCOLLECT_ASSIGN_OR_RETURN(const auto pair, ChooseLogical(store, a, b, request));
  std::vector<RunView> wholes;
  for (const RunView* view : {&a, &b}) {
    if (!pair) break;
    STATCOLLECT_ASSIGN_OR_RETURN(auto whole,
                                 RunView::Open(view == &a ? *pair->a : *pair->b, view->run()));
    wholes.push_back(std::move(whole));
  }
  if (pair) {
    request.logical = true;
    request.loss_factors = LossFactors(*pair);
  }
  RunView &as_a = pair ? wholes.front() : a, &as_b = pair ? wholes.back() : b;
  std::vector<std::unique_ptr<LogicalRun>> repeats;
  STATCOLLECT_ASSIGN_OR_RETURN(
      auto noise,
      OpenNoise(store, as_a, request, OpenAs(store, pair ? pair->a.get() : nullptr, repeats),
                pair && pair->a->folds_micro_batches()));
  auto report = DiffRuns(as_a, as_b, request, links_.is_open, noise.floor.get(), noise.twins.get(),
                         progress, stop);
  if (!report.ok()) return report;
  AddNoise(std::move(noise), *report);
  if (pair) STATCOLLECT_RETURN_IF_ERROR(DescribeRanks(*pair, a, b, &*report));
  for (const RunView* view : {&a, &b})
    STATCOLLECT_RETURN_IF_ERROR(NoteAlarms(store, *view, &report->notes));
  return report;
}

// Repeats that are cut in another way are compared as one model each, and so are then all of them.
Result<NoiseProfile> QueryEngine::SaveNoise(const SaveNoiseRequest& request,
                                            const OnProgress& progress,
                                            const std::stop_token& stop) const {
  LimitedStore store = Limited(stop, read_bytes_max_);
  STATCOLLECT_ASSIGN_OR_RETURN(auto a, RunView::Open(store, request.run));
  std::optional<LogicalPair> pair;
  for (const std::string& name : request.repeats) {
    STATCOLLECT_ASSIGN_OR_RETURN(auto repeat, RunView::Open(store, name));
    STATCOLLECT_ASSIGN_OR_RETURN(pair, ChooseLogical(store, a, repeat, {}));
    if (pair) break;
  }
  std::vector<std::unique_ptr<LogicalRun>> repeats;
  if (!pair) return SaveNoiseOf(store, a, request, OpenAs(store, nullptr, repeats), progress, stop);
  STATCOLLECT_ASSIGN_OR_RETURN(auto whole, RunView::Open(*pair->a, request.run));
  return SaveNoiseOf(store, whole, request, OpenAs(store, pair->a.get(), repeats), progress, stop);
}

Result<RanksReport> QueryEngine::CheckRanks(const RanksRequest& request, const OnProgress& progress,
                                            const std::stop_token& stop) const {
  LimitedStore store = Limited(stop, read_bytes_max_);
  STATCOLLECT_ASSIGN_OR_RETURN(auto view, RunView::Open(store, request.run));
  return query::CheckRanks(view, request, links_.is_open, progress, stop);
}

}  // namespace statcollect::query
