// statctl ab: trains A and B, and A's twins where the two differ, and prints the verdict of diff.
#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "client/commands/commands.h"
#include "client/commands/recordings.h"
#include "client/commands/training.h"
#include "client/commands/zoom_trainings.h"
#include "common/names.h"
#include "common/text.h"
#include "common/twin_name.h"
#include "proto/json.h"

namespace statcollect::client {
namespace {

constexpr char kBetween[] = "---";  // of command A and command B

struct Pair {
  Training a, b;
};

Result<Variables> ParseVariables(const char* option, const std::vector<std::string>& given) {
  Variables variables;
  for (const std::string& entry : given) {
    const std::size_t equals = entry.find('=');
    if (equals == std::string::npos || equals == 0)
      return Status(Code::kInvalidArgument,
                    fmt::format("{}: expected NAME=VALUE, found '{}'", option, Printable(entry)));
    variables.emplace_back(entry.substr(0, equals), entry.substr(equals + 1));
  }
  return variables;
}

Status SplitCommands(const AbOptions& options, Pair& pair) {
  const auto& words = options.commands;
  const auto between = std::find(words.begin(), words.end(), kBetween);
  pair.a.command.assign(words.begin(), between);
  if (between == words.end()) {
    pair.b.command = pair.a.command;
  } else {
    pair.b.command.assign(between + 1, words.end());
  }
  if (pair.a.command.empty() || pair.b.command.empty())
    return {Code::kInvalidArgument, "found an empty command; expected -- COMMAND-A --- COMMAND-B"};
  return Status::Ok();
}

Status SplitNames(const AbOptions& options, Pair& pair) {
  const auto names = PartsOf(options.names, ',');
  if (names.size() != 2 || names[0] == names[1])
    return {Code::kInvalidArgument,
            fmt::format("--names: expected two names, such as base,fused, found '{}'",
                        Printable(options.names))};
  pair.a.run = names[0];
  pair.b.run = names[1];
  for (const Training* training : {&pair.a, &pair.b}) {
    STATCOLLECT_RETURN_IF_ERROR(ValidateRunName(training->run));
    if (!BaseOfTwin(training->run).empty())
      return {Code::kInvalidArgument,
              fmt::format("--names: '{}' is the name of a twin", training->run)};
  }
  return Status::Ok();
}

Result<Pair> PairOf(const AbOptions& options) {
  Pair pair;
  STATCOLLECT_RETURN_IF_ERROR(SplitCommands(options, pair));
  STATCOLLECT_RETURN_IF_ERROR(SplitNames(options, pair));
  auto env_a = ParseVariables("--env-a", options.env_a),
       env_b = ParseVariables("--env-b", options.env_b);
  if (!env_a.ok()) return env_a.status();
  if (!env_b.ok()) return env_b.status();
  pair.a.environment = *std::move(env_a);
  pair.b.environment = *std::move(env_b);
  if (options.steps == 0)
    return Status(Code::kInvalidArgument, "--steps: expected at least one step, found 0");
  for (Training* training : {&pair.a, &pair.b}) {
    training->if_exists = "replace";
    if (!options.steps) continue;
    training->steps = fmt::format("0-{}", *options.steps - 1);
    if (!options.no_stop) training->stop_after = options.steps;
  }
  return pair;
}

class Comparison {
 public:
  Comparison(Session& session, const AbOptions& options, Pair pair)
      : session_(session), options_(options), pair_(std::move(pair)) {}

  // B is the one that changes: only A is taken from last time.
  Status Run() {
    STATCOLLECT_RETURN_IF_ERROR(Obtain(session_, {.which = "A",
                                                  .training = pair_.a,
                                                  .mark = true,
                                                  .reuse = options_.reuse,
                                                  .show = options_.show}));
    return Obtain(session_, {.which = "B", .training = pair_.b, .show = options_.show});
  }

  // Twins say nothing about runs that are equal.
  Status MeasureNoise() {
    if (options_.no_twins) return Status::Ok();
    const auto report =
        AskDiff(session_, {.run_a = pair_.a.run, .run_b = pair_.b.run, .top = 1, .no_noise = true});
    if (!report.ok() || report->verdict() == v1::VERDICT_IDENTICAL) return report.status();
    session_.Remark("A and B differ: what rounding does to A is measured");
    return MakeTwins(
        session_,
        {.training = pair_.a, .quick = options_.quick, .show = options_.show, .hint = false});
  }

  int Answer() {
    const DiffOptions diff{.run_a = pair_.a.run, .run_b = pair_.b.run};
    if (!options_.zoom) return Diff(session_, diff);
    const auto request = DiffRequestOf(diff);
    const auto report = AskDiff(session_, diff);
    if (!request.ok() || !report.ok()) return session_.Fail("ab", report.status());
    const bool as_json = session_.options().format == Format::kJson;
    if (!as_json) PrintDiff(session_, *request, *report);
    const auto zoomed = Zoomed(*report);
    if (zoomed.status().code() == Code::kCancelled) return session_.Fail("ab", zoomed.status());
    // The verdict stands without it.
    if (zoomed.status().code() == Code::kNotFound) {
      session_.Remark("statctl: ab: no zoom: " + zoomed.status().message());
    } else if (!zoomed.ok()) {
      UsageError("ab: no zoom: " + zoomed.status().message());
    }
    if (as_json) {
      auto answer = ToJson(*report);
      answer["zoom"] = zoomed.ok() ? ToJson(*zoomed) : nlohmann::ordered_json();
      session_.PrintLine(DumpJson(answer));
    } else if (zoomed.ok()) {
      session_.PrintLine("");
      session_.PrintPage(ZoomPage(*zoomed, session_.options().quiet));
    }
    return ExitCodeOf(report->verdict());
  }

 private:
  Result<v1::GetZoomResponse> Zoomed(const v1::DiffReport& report) {
    STATCOLLECT_ASSIGN_OR_RETURN(ZoomPlace place, PlaceToZoom(report));
    return TrainZoomed(session_, {.a = pair_.a,
                                  .b = pair_.b,
                                  .place = std::move(place),
                                  .no_stop = options_.no_stop,
                                  .reuse = options_.reuse,
                                  .show = options_.show});
  }

  Session& session_;
  const AbOptions& options_;
  Pair pair_;
};

}  // namespace

int CompareTrainings(Session& session, const AbOptions& options) {
  const Collector::Task task(session.collector());  // Ctrl-C is the programs': both end
  if (options.zoom && session.options().format == Format::kCsv)
    return session.Fail("ab", {Code::kInvalidArgument,
                               "--zoom: found --format csv, which has no place for operators; "
                               "expected table, json or markdown"});
  auto pair = PairOf(options);
  if (!pair.ok()) return session.Fail("ab", pair.status());
  Comparison comparison(session, options, *std::move(pair));
  if (const Status recorded = comparison.Run(); !recorded.ok()) return session.Fail("ab", recorded);
  if (const Status measured = comparison.MeasureNoise(); !measured.ok())
    return session.Fail("ab", measured);
  return comparison.Answer();
}

}  // namespace statcollect::client
