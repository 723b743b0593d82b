// statctl twins: runs a training again, with noise in the last places, so that a diff can measure what rounding does.
#include <array>
#include <chrono>
#include <iostream>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "client/commands/commands.h"
#include "client/commands/training.h"
#include "common/names.h"
#include "common/step_set.h"
#include "common/twin_name.h"
#include "proto/json.h"

namespace statcollect::client {
namespace {

using Stopwatch = std::chrono::steady_clock;

struct TwinKind {
  std::uint64_t ulps, seed;
};
// Two twins of one unit in the last place, and a ladder: larger ones are compared with where a run departs further.
constexpr std::array<TwinKind, 5> kTwins = {{{1, 1}, {1, 2}, {32, 1}, {1024, 1}, {32768, 1}}};
constexpr std::size_t kQuickTwins = 2;
constexpr std::size_t kTailLines = 20;

struct Twin {
  TwinKind kind;
  std::string run;
  bool skipped = false;
  double seconds = 0;
  v1::RunSummary summary = {};
};

std::string SizeText(const TwinKind& kind) {
  return fmt::format("{} ulp, seed {}", FormatCount(kind.ulps), kind.seed);
}

std::string LastLines(const std::string& text) {
  std::size_t at = text.size(), lines = 0;
  while (at > 0 && (text[at - 1] != '\n' || at == text.size() || ++lines < kTailLines)) --at;
  return text.substr(at);
}

Status CheckTwins(const TwinsOptions& options) {
  STATCOLLECT_RETURN_IF_ERROR(ValidateRunName(options.run));
  if (const auto base = BaseOfTwin(options.run); !base.empty()) {
    return Status(
        Code::kInvalidArgument,
        fmt::format("'{}' is a twin itself; expected the run that it is a twin of: '{}'", options.run, base));
  }
  if (const auto steps = StepSet::Parse(options.steps); !steps.ok()) return steps.status();
  return ValidateRunName(TwinName(options.run, kTwins.back().ulps, kTwins.back().seed));
}

// Trains once. The error says which twin, and why.
Status TrainTwin(Session& session, const TwinsOptions& options, Twin& twin) {
  const auto begun = Stopwatch::now();
  const Training training{
      .run = options.run,
      .command = options.command,
      .perturb = fmt::format("{},{}{}", twin.kind.ulps, twin.kind.seed, options.once ? ",once" : ""),
      .steps = options.steps};
  const auto end =
      Train(session, training, session.options().quiet ? ChildOutput::kKept : ChildOutput::kToErrors);
  if (!end.ok()) return end.status();
  twin.seconds = std::chrono::duration<double>(Stopwatch::now() - begun).count();
  if (!session.collector().WaitUnlessCancelled(std::chrono::milliseconds(0)))
    return Status(Code::kCancelled, "interrupted");
  if (end->code != 0) {
    std::cerr << LastLines(end->tail);
    return Status(
        Code::kUnknown,
        fmt::format("the command ended with exit code {} while it trained '{}'; expected 0; its last output "
                    "is above; mend it and run this again: twins that exist are skipped",
                    end->code, twin.run));
  }
  const auto found = FindRun(session, twin.run);
  if (!found.ok()) return found.status();
  if (!*found) {
    return Status(
        Code::kNotFound,
        fmt::format(
            "the command ended well, but no run '{}' has been recorded; expected statagent.init() without "
            "run=, or with run='{}', and statagent.watch(model), at this collector",
            twin.run, options.run));
  }
  twin.summary = **found;
  return Status::Ok();
}

// Records the twin, unless it exists.
Status RecordTwin(Session& session, const TwinsOptions& options, const std::string& which, Twin& twin) {
  auto existing = FindRun(session, twin.run);
  if (!existing.ok()) return existing.status();
  if (*existing && !options.again) {
    twin.skipped = true;
    twin.summary = **existing;
    session.Remark(fmt::format("{}: '{}' exists ({}, {} records); --again records it again", which, twin.run,
                               twin.summary.state(), FormatCount(twin.summary.records())));
    return Status::Ok();
  }
  if (*existing) {
    v1::DeleteRunRequest request;
    request.set_run(twin.run);
    if (const auto removed = session.collector().DeleteRun(request); !removed.ok()) return removed.status();
  }
  session.Remark(fmt::format("{}: '{}' ({}) is being recorded", which, twin.run, SizeText(twin.kind)));
  STATCOLLECT_RETURN_IF_ERROR(TrainTwin(session, options, twin));
  session.Remark(fmt::format("{}: '{}' has {} records of {} steps, in {:.1f} s", which, twin.run,
                             FormatCount(twin.summary.records()), FormatCount(twin.summary.steps()),
                             twin.seconds));
  return Status::Ok();
}

void PrintTwins(Session& session, const TwinsOptions& options, const std::vector<Twin>& twins) {
  if (session.options().format == Format::kJson) {
    nlohmann::ordered_json list = nlohmann::ordered_json::array();
    for (const Twin& twin : twins) {
      list.push_back({{"run", twin.run},
                      {"ulps", twin.kind.ulps},
                      {"seed", twin.kind.seed},
                      {"recorded", !twin.skipped},
                      {"seconds", twin.seconds},
                      {"state", twin.summary.state()},
                      {"steps", twin.summary.steps()},
                      {"records", twin.summary.records()}});
    }
    session.PrintLine(DumpJson({{"run", options.run}, {"once", options.once}, {"twins", list}}));
    return;
  }
  Table table({{"twin", Align::kLeft, true},
               {"ulp", Align::kRight},
               {"seed", Align::kRight},
               {"steps", Align::kRight},
               {"records", Align::kRight},
               {"seconds", Align::kRight}});
  for (const Twin& twin : twins) {
    table.AddRow({twin.run, FormatCount(twin.kind.ulps), std::to_string(twin.kind.seed),
                  FormatCount(twin.summary.steps()), FormatCount(twin.summary.records()),
                  twin.skipped ? "existed" : fmt::format("{:.1f}", twin.seconds)});
  }
  if (session.options().format == Format::kCsv) return session.PrintCsv(table);
  Page page;
  page.AddTable(std::move(table));
  page.AddSentence(fmt::format("statctl diff {} OTHER measures the rounding of '{}' with {} from now on.",
                               options.run, options.run, twins.size() == 1 ? "this twin" : "these twins"));
  session.PrintPage(page);
}

}  // namespace

int RecordTwins(Session& session, const TwinsOptions& options) {
  const std::string attempted = "twins " + Printable(options.run);
  const Collector::Task task(session.collector());  // Ctrl-C is the program's as well: both end
  if (const Status fit = CheckTwins(options); !fit.ok()) return session.Fail(attempted, fit);
  v1::GetRunRequest question;
  question.set_run(options.run);
  if (const auto base = session.collector().GetRun(question); !base.ok())
    return session.Fail(attempted, base.status());
  std::vector<Twin> twins;
  for (const TwinKind& kind : std::span(kTwins).first(options.quick ? kQuickTwins : kTwins.size()))
    twins.push_back({.kind = kind, .run = TwinName(options.run, kind.ulps, kind.seed)});
  for (std::size_t i = 0; i < twins.size(); ++i) {
    const std::string which = fmt::format("twin {} of {}", i + 1, twins.size());
    if (const Status recorded = RecordTwin(session, options, which, twins[i]); !recorded.ok())
      return session.Fail(attempted + ": " + which, recorded);
  }
  PrintTwins(session, options, twins);
  return kExitSame;
}

}  // namespace statcollect::client
