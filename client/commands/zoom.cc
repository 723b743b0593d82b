#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "client/commands/commands.h"
#include "client/commands/recorded_command.h"
#include "client/commands/selection.h"
#include "client/commands/zoom_trainings.h"
#include "client/render/flatten.h"
#include "common/names.h"
#include "proto/text/shell_word.h"
#include "proto/text/zoom_place.h"

namespace statcollect::client {
namespace {

Result<v1::GetZoomRequest> RequestOf(const ZoomOptions& options) {
  v1::GetZoomRequest request;
  for (const std::string* run : {&options.run_a, &options.run_b})
    STATCOLLECT_RETURN_IF_ERROR(ValidateRunName(*run));
  request.set_run_a(options.run_a);
  request.set_run_b(options.run_b);
  request.set_module(options.module);
  STATCOLLECT_RETURN_IF_ERROR(Select(options.ranks, options.steps, request));
  return request;
}

// Where to zoom, as their diff says.
Result<ZoomPlace> PlaceOfDiff(Session& session, const ZoomOptions& options) {
  DiffOptions diff;
  diff.run_a = options.run_a;
  diff.run_b = options.run_b;
  diff.ranks = options.ranks;
  diff.steps = options.steps;
  STATCOLLECT_ASSIGN_OR_RETURN(const v1::DiffReport report, AskDiff(session, diff, 0, 0));
  return PlaceToZoom(report);
}

// What is missing, in words.
std::string MissingText(const v1::GetZoomResponse& response) {
  return response.zoomed_a() || response.zoomed_b()
             ? "only one of them has zoomed into a module, or each into others"
             : "neither has zoomed into a module";
}

void ProposeCommands(Session& session, const ZoomOptions& options, const ZoomPlace& place,
                     const std::string& missing) {
  session.Remark("statctl: " + missing +
                 ". Run both again up to that step (--train does), then compare these runs:");
  Page page;
  std::vector<std::string> lines;
  for (const std::string* run : {&options.run_a, &options.run_b}) {
    const auto config = ConfigOf(session, *run);
    const auto known = config.ok() ? RecordedTraining(*run, *config) : config.status();
    lines.push_back(
        fmt::format("STATAGENT_ZOOM={} STATAGENT_STEPS=0-{} statctl run {} -- {}",
                    ShellWord(place.ToText()), place.step, ShellWord(ZoomRunName(*run)),
                    known.ok() ? CommandText(known->command) : "THE COMMAND OF " + *run));
  }
  lines.push_back(fmt::format("statctl zoom {} {}", ShellWord(ZoomRunName(options.run_a)),
                              ShellWord(ZoomRunName(options.run_b))));
  page.AddItems(std::move(lines));
  session.PrintPage(page);
}

void RemarkOnPlace(Session& session, const char* which, const Training& training) {
  std::string variables;
  for (const auto& [name, value] : training.environment)
    variables += fmt::format(" {}={}", name, ShellWord(value));
  session.Remark(
      fmt::format("{}: as '{}' was recorded, in {}; the environment is that of this shell{}{}: {}",
                  which, training.run, Printable(training.folder),
                  variables.empty() ? "" : ", but for", variables, CommandText(training.command)));
}

// The commands are the collector's words; whoever may write a run chose them.
Status AskBeforeTraining(Session& session, const ZoomOptions& options) {
  if (options.yes) return Status::Ok();
  if (!session.terminal().in) {
    return {Code::kInvalidArgument,
            "cannot ask without a terminal whether to run these commands; add --yes to run them"};
  }
  if (Confirms("Run both commands?")) return Status::Ok();
  return {Code::kInvalidArgument, "not confirmed; nothing was trained"};
}

// Both again, as they were recorded.
Result<v1::GetZoomResponse> TrainAgain(Session& session, const ZoomOptions& options,
                                       ZoomPlace place) {
  STATCOLLECT_ASSIGN_OR_RETURN(const RunConfig of_a, ConfigOf(session, options.run_a));
  STATCOLLECT_ASSIGN_OR_RETURN(const RunConfig of_b, ConfigOf(session, options.run_b));
  STATCOLLECT_ASSIGN_OR_RETURN(Training a, RecordedTraining(options.run_a, of_a));
  STATCOLLECT_ASSIGN_OR_RETURN(Training b, RecordedTraining(options.run_b, of_b));
  STATCOLLECT_RETURN_IF_ERROR(RestoreVariables(of_a, of_b, a, b));
  RemarkOnPlace(session, "A", a);
  RemarkOnPlace(session, "B", b);
  STATCOLLECT_RETURN_IF_ERROR(AskBeforeTraining(session, options));
  return TrainZoomed(session, {.a = std::move(a), .b = std::move(b), .place = std::move(place)});
}

int Answer(Session& session, const v1::GetZoomResponse& response) {
  const auto& calls = response.calls();
  session.Print(
      response, [&] { return FlattenRecords(calls, kIdentityColumns); },
      [&] { return ZoomPage(response, session.options().quiet); });
  if (std::any_of(calls.begin(), calls.end(), NamesOperators)) return kExitDiverged;
  return std::any_of(calls.begin(), calls.end(), IsOfInputs) ? kExitDiverged : kExitSame;
}

}  // namespace

int Zoom(Session& session, const ZoomOptions& options) {
  const std::string attempted = "zoom " + Printable(options.run_a) + " " + Printable(options.run_b);
  const auto request = RequestOf(options);
  if (!request.ok()) return session.Fail(attempted, request.status());
  const auto response = session.collector().GetZoom(*request);
  if (!response.ok()) return session.Fail(attempted, response.status());
  if (!response->calls().empty()) return Answer(session, *response);
  if (!options.module.empty() && response->zoomed_a() && response->zoomed_b()) {
    return session.Fail(
        attempted,
        {Code::kNotFound, "found no zoom into '" + Printable(options.module) +
                              "' that both runs have; leave --module out to see which there are"});
  }
  const std::string missing = MissingText(*response);
  auto place = PlaceOfDiff(session, options);
  if (!place.ok())
    return session.Fail(attempted,
                        {place.status().code(), missing + ", and " + place.status().message()});
  if (!options.train) {
    ProposeCommands(session, options, *place, missing);
    return kExitNoAnswer;
  }
  const Collector::Task task(session.collector());  // Ctrl-C is the programs': both end
  const auto trained = TrainAgain(session, options, *std::move(place));
  return trained.ok() ? Answer(session, *trained) : session.Fail(attempted, trained.status());
}

}  // namespace statcollect::client
