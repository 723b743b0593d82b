#include <algorithm>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "client/commands/commands.h"
#include "client/commands/selection.h"
#include "client/render/flatten.h"
#include "common/names.h"
#include "proto/text/shell_word.h"

namespace statcollect::client {
namespace {

constexpr std::size_t kNoteMax = 1000;

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

// How bad: an operator or a block is a difference; rounding and inputs are not of this module.
bool IsNamed(const v1::ZoomCall& call) {
  return call.outcome() == v1::ZOOM_OUTCOME_OPERATOR || call.outcome() == v1::ZOOM_OUTCOME_BLOCK;
}

bool IsOfInputs(const v1::ZoomCall& call) { return call.outcome() == v1::ZOOM_OUTCOME_INPUTS; }

Page Render(const v1::GetZoomResponse& response, bool quiet) {
  Page page;
  for (const v1::ZoomCall& call : response.calls()) {
    if (quiet && !IsNamed(call)) continue;
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

// Where to zoom: the module of the diff's root, or of its first divergence.
Result<std::string> PlaceToZoom(Session& session, const ZoomOptions& options, std::uint32_t* rank) {
  DiffOptions diff;
  diff.run_a = options.run_a;
  diff.run_b = options.run_b;
  diff.ranks = options.ranks;
  diff.steps = options.steps;
  STATCOLLECT_ASSIGN_OR_RETURN(const v1::DiffReport report, AskDiff(session, diff, 0, 0));
  if (!report.has_root() && report.diverged().empty()) {
    return Status(Code::kNotFound, "their diff names no tensor to zoom into (" +
                                       Printable(report.text().verdict()) +
                                       "); expected two runs that diverge");
  }
  const bool root = report.has_root();
  const std::string name = root ? report.root().activation() : report.diverged(0).activation();
  const v1::Kind kind = root ? report.root().kind() : report.diverged(0).kind();
  const std::uint64_t step = root ? report.root().step() : report.diverged(0).step();
  *rank = root ? report.root().rank() : report.diverged(0).rank();
  if (kind == v1::KIND_OUTPUT) return name + "@" + std::to_string(step);
  return Status(
      Code::kNotFound,
      fmt::format("their diff begins at {} ({}), step {}, which no forward pass of a module "
                  "computes; expected the output of a module; set STATAGENT_ZOOM=MODULE@STEP "
                  "yourself for two further runs",
                  Printable(name), Name(static_cast<Kind>(kind)), step));
}

int ProposeCommands(Session& session, const ZoomOptions& options,
                    const v1::GetZoomResponse& response, const std::string& attempted) {
  std::uint32_t rank = 0;
  const auto place = PlaceToZoom(session, options, &rank);
  const std::string missing = response.zoomed_a() || response.zoomed_b()
                                  ? "only one of them has zoomed into a module, or each into others"
                                  : "neither has zoomed into a module";
  if (!place.ok()) {
    return session.Fail(attempted,
                        {place.status().code(), missing + ", and " + place.status().message()});
  }
  session.Remark("statctl: " + missing +
                 ". Run both again up to that step, then compare these runs:");
  Page page;
  std::vector<std::string> lines;
  for (const std::string* run : {&options.run_a, &options.run_b}) {
    lines.push_back(fmt::format(
        "STATAGENT_ZOOM={} STATAGENT_STEPS=0-{} statctl run {} -- THE COMMAND OF {}",
        ShellWord(*place), place->substr(place->rfind('@') + 1), ShellWord(*run + ".zoom"), *run));
  }
  lines.push_back(fmt::format("statctl zoom {} {}", ShellWord(options.run_a + ".zoom"),
                              ShellWord(options.run_b + ".zoom")));
  page.AddItems(std::move(lines));
  session.PrintPage(page);
  return kExitNoAnswer;
}

}  // namespace

int Zoom(Session& session, const ZoomOptions& options) {
  const std::string attempted = "zoom " + Printable(options.run_a) + " " + Printable(options.run_b);
  const auto request = RequestOf(options);
  if (!request.ok()) return session.Fail(attempted, request.status());
  const auto response = session.collector().GetZoom(*request);
  if (!response.ok()) return session.Fail(attempted, response.status());
  const auto& calls = response->calls();
  if (calls.empty() && !options.module.empty() && response->zoomed_a() && response->zoomed_b()) {
    return session.Fail(
        attempted,
        {Code::kNotFound, "found no zoom into '" + Printable(options.module) +
                              "' that both runs have; leave --module out to see which there are"});
  }
  if (calls.empty()) return ProposeCommands(session, options, *response, attempted);
  session.Print(
      *response, [&] { return FlattenRecords(calls, kIdentityColumns); },
      [&] { return Render(*response, session.options().quiet); });
  if (std::any_of(calls.begin(), calls.end(), IsNamed)) return kExitDiverged;
  return std::any_of(calls.begin(), calls.end(), IsOfInputs) ? kExitDiverged : kExitSame;
}

}  // namespace statcollect::client
