// statctl twins: runs a training again, with noise in the last places, so that a diff can measure
// what rounding does.
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

// Two twins of one unit in the last place, and a ladder: larger ones are compared with where a run
// departs further.
constexpr std::array<Noise, 5> kTwins = {{{1, 1}, {1, 2}, {32, 1}, {1024, 1}, {32768, 1}}};
constexpr std::size_t kQuickTwins = 2;

struct Twin {
  Noise noise;
  std::string run;
  bool skipped = false;
  double seconds = 0;
  v1::RunSummary summary = {};
};

std::string SizeText(const Noise& noise) {
  return fmt::format("{} ulp, seed {}", FormatCount(noise.ulps), noise.seed);
}

Status CheckTwins(const TwinsOptions& options) {
  STATCOLLECT_RETURN_IF_ERROR(ValidateRunName(options.training.run));
  if (const auto base = BaseOfTwin(options.training.run); !base.empty()) {
    return Status(Code::kInvalidArgument,
                  fmt::format("'{}' is a twin itself; expected the run that it is a twin of: '{}'",
                              options.training.run, base));
  }
  if (const auto steps = StepSet::Parse(options.training.steps); !steps.ok()) return steps.status();
  return ValidateRunName(TwinName(options.training.run, kTwins.back().ulps, kTwins.back().seed));
}

Status RemoveRun(Session& session, const std::string& run) {
  v1::DeleteRunRequest request;
  request.set_run(run);
  return session.collector().DeleteRun(request).status();
}

// Records the twin, unless it exists.
Status RecordTwin(Session& session, const TwinsOptions& options, const std::string& which,
                  Twin& twin) {
  auto existing = FindRun(session, twin.run);
  if (!existing.ok()) return existing.status();
  if (*existing && !options.again) {
    twin.skipped = true;
    twin.summary = **existing;
    session.Remark(fmt::format("{}: '{}' exists ({}, {} records){}", which, twin.run,
                               twin.summary.state(), FormatCount(twin.summary.records()),
                               options.hint ? "; --again records it again" : ""));
    return Status::Ok();
  }
  if (*existing) STATCOLLECT_RETURN_IF_ERROR(RemoveRun(session, twin.run));
  session.Remark(
      fmt::format("{}: '{}' ({}) is being recorded", which, twin.run, SizeText(twin.noise)));
  Training training = options.training;
  training.noise = twin.noise;
  auto recorded = Record(session, training, options.show && !session.options().quiet);
  if (!recorded.ok()) {
    const bool failed = recorded.status().code() == Code::kUnknown;
    return {recorded.status().code(),
            recorded.status().message() +
                (failed ? "; mend it and run this again: twins that exist are skipped" : "")};
  }
  twin.summary = std::move(recorded->summary);
  twin.seconds = recorded->seconds;
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
                      {"ulps", twin.noise.ulps},
                      {"seed", twin.noise.seed},
                      {"recorded", !twin.skipped},
                      {"seconds", twin.seconds},
                      {"state", twin.summary.state()},
                      {"steps", twin.summary.steps()},
                      {"records", twin.summary.records()}});
    }
    session.PrintLine(
        DumpJson({{"run", options.training.run}, {"once", options.once}, {"twins", list}}));
    return;
  }
  Table table({{"twin", Align::kLeft, true},
               {"ulp", Align::kRight},
               {"seed", Align::kRight},
               {"steps", Align::kRight},
               {"records", Align::kRight},
               {"seconds", Align::kRight}});
  for (const Twin& twin : twins) {
    table.AddRow({twin.run, FormatCount(twin.noise.ulps), std::to_string(twin.noise.seed),
                  FormatCount(twin.summary.steps()), FormatCount(twin.summary.records()),
                  twin.skipped ? "existed" : fmt::format("{:.1f}", twin.seconds)});
  }
  if (session.options().format == Format::kCsv) return session.PrintCsv(table);
  Page page;
  page.AddTable(std::move(table));
  page.AddSentence(fmt::format(
      "statctl diff {} OTHER measures the rounding of '{}' with {} from now on.",
      options.training.run, options.training.run, twins.size() == 1 ? "this twin" : "these twins"));
  session.PrintPage(page);
}

std::vector<Twin> TwinsOf(const TwinsOptions& options) {
  std::vector<Twin> twins;
  for (Noise noise : std::span(kTwins).first(options.quick ? kQuickTwins : kTwins.size())) {
    noise.once = options.once;
    twins.push_back(
        {.noise = noise, .run = TwinName(options.training.run, noise.ulps, noise.seed)});
  }
  return twins;
}

// The error says at which twin.
Status RecordAll(Session& session, const TwinsOptions& options, std::vector<Twin>& twins) {
  for (std::size_t i = 0; i < twins.size(); ++i) {
    const std::string which = fmt::format("twin {} of {}", i + 1, twins.size());
    if (const Status recorded = RecordTwin(session, options, which, twins[i]); !recorded.ok())
      return {recorded.code(), which + ": " + recorded.message()};
  }
  return Status::Ok();
}

}  // namespace

Status MakeTwins(Session& session, const TwinsOptions& options) {
  std::vector<Twin> twins = TwinsOf(options);
  return RecordAll(session, options, twins);
}

Status RemoveTwins(Session& session, const std::string& run) {
  for (const Noise& noise : kTwins) {
    const std::string twin = TwinName(run, noise.ulps, noise.seed);
    const auto found = FindRun(session, twin);
    if (!found.ok()) return found.status();
    if (*found) STATCOLLECT_RETURN_IF_ERROR(RemoveRun(session, twin));
  }
  return Status::Ok();
}

int RecordTwins(Session& session, const TwinsOptions& options) {
  const std::string attempted = "twins " + Printable(options.training.run);
  const Collector::Task task(session.collector());  // Ctrl-C is the program's as well: both end
  if (const Status fit = CheckTwins(options); !fit.ok()) return session.Fail(attempted, fit);
  v1::GetRunRequest question;
  question.set_run(options.training.run);
  if (const auto base = session.collector().GetRun(question); !base.ok())
    return session.Fail(attempted, base.status());
  std::vector<Twin> twins = TwinsOf(options);
  if (const Status recorded = RecordAll(session, options, twins); !recorded.ok())
    return session.Fail(attempted, recorded);
  PrintTwins(session, options, twins);
  return kExitSame;
}

}  // namespace statcollect::client
