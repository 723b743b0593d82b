#include <algorithm>

#include <fmt/format.h>

#include "client/commands/commands.h"
#include "client/commands/selection.h"
#include "client/render/flatten.h"
#include "client/render/progress_bar.h"
#include "common/names.h"
#include "common/text.h"
#include "proto/json.h"

namespace statcollect::client {
namespace {

std::string Words(std::string text) {
  std::replace(text.begin(), text.end(), '_', ' ');
  return text;
}

std::string TensorText(const v1::RankFinding& f) {
  if (f.activation().empty()) return "-";
  std::string text = f.activation();
  if (!f.output_path().empty() && f.output_path() != "0") text += "[" + f.output_path() + "]";
  if (f.activations() > 1) text += fmt::format(" and {} more", FormatCount(f.activations() - 1));
  return text;
}

void AddVerdict(const v1::RanksReport& report, Page& page) {
  const std::string run = Printable(report.run());
  switch (report.verdict()) {
    case v1::RANKS_VERDICT_CONSISTENT:
      return page.AddSentence(
          fmt::format("{}: ranks {} agree in all of {} weights, gradients and states compared.",
                      run, RanksText(report.ranks()), FormatCount(report.compared().records())),
          "CONSISTENT", Tone::kGood);
    case v1::RANKS_VERDICT_INCONSISTENT: {
      const v1::RankFinding& first = report.findings(0);
      return page.AddSentence(
          fmt::format("{}, from step {} on: {}", run, first.step(), Printable(first.text(), 1000)),
          "INCONSISTENT", Tone::kBad);
    }
    default:
      return page.AddSentence(fmt::format("{}: {}.", run, Printable(report.message(), 1000)),
                              "INCOMPARABLE", Tone::kWarn);
  }
}

void AddFindings(const v1::RanksReport& report, Page& page) {
  if (report.findings().empty()) return;
  Table table({{"step", Align::kRight},
               {"ranks", Align::kLeft, false, Use::kIfItVaries},
               {"stage", Align::kLeft, false, Use::kIfItVaries},
               {"tensor", Align::kLeft, true},
               {"reason", Align::kLeft, false, Use::kIfItVaries},
               {"distance", Align::kRight},
               {"steps", Align::kRight, false, Use::kIfItFits},
               {"cause"}});
  std::vector<std::string> sentences;
  for (const v1::RankFinding& f : report.findings()) {
    table.AddRow(
        {std::to_string(f.step()), RanksText(f.ranks()),
         f.stage() == v1::STAGE_UNSPECIFIED ? "-" : EnumText(*v1::Stage_descriptor(), f.stage()),
         TensorText(f), Words(EnumText(*v1::RankReason_descriptor(), f.reason())),
         f.has_distance() ? FormatShort(f.distance()) : "-", FormatCount(f.steps()),
         f.propagated() ? "propagated" : "origin"});
    sentences.push_back(fmt::format("step {}: {}", f.step(), Printable(f.text(), 1000)));
  }
  page.AddHeading("Findings, by first step");
  page.AddTable(std::move(table));
  page.AddHeading("In words");
  page.AddItems(std::move(sentences));
}

void AddCompared(const v1::RanksReport& report, Page& page) {
  const v1::Compared& c = report.compared();
  std::vector<std::string> items = {fmt::format(
      "{} tensors against their replicas: {} equal bit for bit, {} within tolerance, {} differ",
      FormatCount(c.records()), FormatCount(c.identical()), FormatCount(c.within_tolerance()),
      FormatCount(c.diverged()))};
  std::string groups;
  for (int i = 0; i < report.groups_size() && i < 8; ++i)
    groups += (i == 0 ? "" : " | ") + RanksText(report.groups(i).ranks());
  if (report.groups_size() > 8) groups += " | ...";
  items.push_back("replicas: " + (groups.empty() ? "none" : groups));
  if (report.has_steps())
    items.push_back(fmt::format("steps {}..{}", report.steps().first(), report.steps().last()));
  for (const std::string& note : report.notes()) items.push_back(Printable(note, 1000));
  page.AddHeading("Compared, and remarks");
  page.AddItems(std::move(items));
}

Page Render(const v1::RanksReport& report, bool quiet) {
  Page page;
  AddVerdict(report, page);
  if (quiet) return page;
  AddFindings(report, page);
  AddCompared(report, page);
  return page;
}

Status MakeRequest(const RanksOptions& options, v1::CheckRanksRequest& request) {
  STATCOLLECT_RETURN_IF_ERROR(ValidateRunName(options.run));
  request.set_run(options.run);
  STATCOLLECT_RETURN_IF_ERROR(Select(options.ranks, options.steps, request));
  STATCOLLECT_RETURN_IF_ERROR(SelectKinds(options.kinds, request));
  if (options.tolerance) request.set_tolerance(*options.tolerance);
  request.set_top(options.top);
  return Status::Ok();
}

Result<v1::RanksReport> Ask(Session& session, const v1::CheckRanksRequest& request) {
  ProgressBar bar("checking", session.terminal().err && !session.options().quiet);
  return session.collector().CheckRanks(
      request, [&](const v1::Progress& progress) { bar.Draw(progress.done(), progress.total()); });
}

int ExitCode(v1::RanksVerdict verdict) {
  return verdict == v1::RANKS_VERDICT_CONSISTENT     ? kExitSame
         : verdict == v1::RANKS_VERDICT_INCONSISTENT ? kExitDiverged
                                                     : kExitNoAnswer;
}

}  // namespace

int CheckRanks(Session& session, const RanksOptions& options) {
  const std::string attempted = "ranks " + Printable(options.run);
  v1::CheckRanksRequest request;
  if (const Status wrong = MakeRequest(options, request); !wrong.ok())
    return session.Fail(attempted, wrong);
  const auto report = Ask(session, request);
  if (!report.ok()) return session.Fail(attempted, report.status());
  session.Print(
      *report, [&] { return FlattenRecords(report->findings()); },
      [&] { return Render(*report, session.options().quiet); });
  return ExitCode(report->verdict());
}

}  // namespace statcollect::client
