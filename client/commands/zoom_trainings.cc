#include "client/commands/zoom_trainings.h"

#include <algorithm>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "client/commands/recorded_command.h"
#include "client/commands/recordings.h"
#include "common/names.h"

namespace statcollect::client {
namespace {

constexpr std::size_t kNoteMax = 1000;
constexpr int kOutwardsMax = 3;            // further pairs of trainings
constexpr char kMissed[] = "zoom_missed";  // kind of the agent's event

Training Zoomed(Training training, const ZoomTrainings& how) {
  training.run = ZoomRunName(training.run);
  training.steps = fmt::format("0-{}", how.place.step);
  if (!how.no_stop) training.stop_after = how.place.step + 1;
  training.environment.emplace_back("STATAGENT_ZOOM", how.place.ToText());
  return training;
}

// What the agent of a run says about a zoom that recorded nothing; empty if it says nothing.
std::string WhyMissed(Session& session, const std::string& run) {
  v1::GetRunRequest question;
  question.set_run(run);
  const auto found = session.collector().GetRun(question);
  if (!found.ok()) return {};
  for (const v1::EventRow& event : found->events()) {
    if (event.kind() == kMissed) return ": " + Printable(event.text(), kNoteMax);
  }
  return {};
}

// Records both up to the step, and compares them.
Result<v1::GetZoomResponse> TrainOnce(Session& session, const ZoomTrainings& trainings) {
  const std::vector<std::pair<const char*, Training>> both = {
      {"zoom of A", Zoomed(trainings.a, trainings)}, {"zoom of B", Zoomed(trainings.b, trainings)}};
  for (const auto& [which, training] : both)
    STATCOLLECT_RETURN_IF_ERROR(ValidateRunName(training.run));
  session.Remark(fmt::format(
      "zoom: both are trained again up to step {}, in which every operator of {} is recorded",
      trainings.place.step, Printable(trainings.place.module, kNoteMax)));
  for (const auto& [which, training] : both)
    STATCOLLECT_RETURN_IF_ERROR(Obtain(session, {.which = which,
                                                 .training = training,
                                                 .mark = true,
                                                 .reuse = trainings.reuse,
                                                 .show = trainings.show}));
  v1::GetZoomRequest request;
  request.set_run_a(both[0].second.run);
  request.set_run_b(both[1].second.run);
  auto response = session.collector().GetZoom(request);
  if (!response.ok() || !response->calls().empty()) return response;
  const std::string& lacking = (response->zoomed_a() ? both[1] : both[0]).second.run;
  return Status(
      Code::kNotFound,
      fmt::format("'{}' has recorded no operators of {}{}; expected that its training runs "
                  "this module in step {}",
                  lacking, Printable(trainings.place.module, kNoteMax), WhyMissed(session, lacking),
                  trainings.place.step));
}

// The module around another, past lists of modules, which have no forward pass; the outermost is
// called as its class is. Empty: there is none.
std::string Around(std::string module, const RunConfig& config) {
  const auto setting = [&](const std::string& name) {
    const auto found = config.find(name);
    return found == config.end() ? std::string() : found->second;
  };
  const std::string root = setting("model.class");
  if (module == root) return {};
  std::string of;
  do {
    const std::size_t dot = module.rfind('.');
    if (dot == std::string::npos) return root;
    module.resize(dot);
    of = setting("module." + module + ".class");
  } while (of == "ModuleList" || of == "ModuleDict");
  return module;
}

}  // namespace

std::string ZoomRunName(const std::string& run) { return run + ".zoom"; }

Result<v1::GetZoomResponse> TrainZoomed(Session& session, const ZoomTrainings& given) {
  ZoomTrainings trainings = given;
  auto response = TrainOnce(session, trainings);
  for (int outwards = 0; outwards < kOutwardsMax && response.ok(); ++outwards) {
    const auto& calls = response->calls();
    if (!std::all_of(calls.begin(), calls.end(), IsOfInputs)) break;
    STATCOLLECT_ASSIGN_OR_RETURN(const RunConfig config, ConfigOf(session, trainings.a.run));
    std::string next = Around(trainings.place.module, config);
    if (next.empty()) break;
    trainings.place.module = std::move(next);
    session.Remark("zoom: what goes into it differs already; next is the module around it");
    auto around = TrainOnce(session, trainings);
    if (around.status().code() == Code::kNotFound) continue;  // it has no forward pass
    response = std::move(around);
  }
  return response;
}

bool IsOfInputs(const v1::ZoomCall& call) { return call.outcome() == v1::ZOOM_OUTCOME_INPUTS; }

bool NamesOperators(const v1::ZoomCall& call) {
  return call.outcome() == v1::ZOOM_OUTCOME_OPERATOR || call.outcome() == v1::ZOOM_OUTCOME_BLOCK;
}

Page ZoomPage(const v1::GetZoomResponse& response, bool quiet) {
  Page page;
  for (const v1::ZoomCall& call : response.calls()) {
    if (quiet && !NamesOperators(call)) continue;
    std::vector<std::string> lines(call.text().begin(), call.text().end());
    if (lines.empty()) continue;
    page.AddSentence(lines.front());
    lines.erase(lines.begin());
    if (!lines.empty()) page.AddItems(std::move(lines));
  }
  std::vector<std::string> notes;
  for (const std::string& note : response.notes()) notes.push_back(Printable(note, kNoteMax));
  if (!notes.empty() && !quiet) page.AddItems(std::move(notes));
  return page;
}

}  // namespace statcollect::client
