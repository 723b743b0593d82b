// statctl ab: trains A and B, and A's twins where the two differ, and prints the verdict of diff.
#include <algorithm>
#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "client/commands/code_state.h"
#include "client/commands/commands.h"
#include "client/commands/training.h"
#include "common/names.h"
#include "common/text.h"
#include "common/twin_name.h"

namespace statcollect::client {
namespace {

constexpr char kBetween[] = "---";  // of command A and command B
constexpr char kMadeBy[] =
    "recording.made_by";  // the setting that says whether A can be used again

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

// Adds the setting to those that the user gives. False if these cannot be read: the agent says why.
bool AddSetting(const std::string& value, Training& training) {
  const char* const given = std::getenv("STATAGENT_CONFIG");
  nlohmann::json settings = nlohmann::json::object();
  if (given != nullptr && *given != '\0') {
    if (*given == '@') return false;
    settings = nlohmann::json::parse(given, nullptr, false);
    if (!settings.is_object()) return false;
  }
  settings[kMadeBy] = value;
  training.environment.emplace_back("STATAGENT_CONFIG", settings.dump());
  return true;
}

// Whether the run is there, complete, and was made by the same training.
Result<bool> IsThere(Session& session, const std::string& run, const std::string& made_by) {
  v1::GetRunRequest question;
  question.set_run(run);
  const auto found = session.collector().GetRun(question);
  if (found.status().code() == Code::kNotFound) return false;
  if (!found.ok()) return found.status();
  const auto setting = found->config().find(kMadeBy);
  return setting != found->config().end() && setting->second == made_by &&
         found->summary().state() == "finished";
}

class Comparison {
 public:
  Comparison(Session& session, const AbOptions& options, Pair pair)
      : session_(session), options_(options), pair_(std::move(pair)) {}

  Status Run() {
    const std::string state = CodeState(pair_.a, session_.options().data_dir);
    const bool marked = AddSetting(state, pair_.a);
    auto reused =
        options_.reuse && marked ? IsThere(session_, pair_.a.run, state) : Result<bool>(false);
    if (!reused.ok()) return reused.status();
    if (*reused) {
      session_.Remark(fmt::format(
          "A: '{}' is as it was last time; of data outside of this repository nothing is known",
          pair_.a.run));
    } else {
      if (options_.reuse)
        session_.Remark(fmt::format(
            "A: there is no complete run '{}' of this command, environment and code{}", pair_.a.run,
            marked ? " (files that git does not know are code, too)"
                   : "; STATAGENT_CONFIG is no JSON object, so none can be known"));
      STATCOLLECT_RETURN_IF_ERROR(RemoveTwins(session_, pair_.a.run));
      STATCOLLECT_RETURN_IF_ERROR(RecordOne("A", pair_.a));
    }
    return RecordOne("B", pair_.b);
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

  int Answer() { return Diff(session_, {.run_a = pair_.a.run, .run_b = pair_.b.run}); }

 private:
  Status RecordOne(const char* which, const Training& training) {
    session_.Remark(fmt::format("{}: {}", which, CommandText(training.command)));
    const auto recorded = Record(session_, training, options_.show);
    if (!recorded.ok())
      return {recorded.status().code(), fmt::format("{}: {}", which, recorded.status().message())};
    const v1::RunSummary& run = recorded->summary;
    session_.Remark(fmt::format("{}: '{}' has {} steps, {} records, in {:.1f} s", which,
                                training.run, FormatCount(run.steps()), FormatCount(run.records()),
                                recorded->seconds));
    return Status::Ok();
  }

  Session& session_;
  const AbOptions& options_;
  Pair pair_;
};

}  // namespace

int CompareTrainings(Session& session, const AbOptions& options) {
  const Collector::Task task(session.collector());  // Ctrl-C is the programs': both end
  auto pair = PairOf(options);
  if (!pair.ok()) return session.Fail("ab", pair.status());
  Comparison comparison(session, options, *std::move(pair));
  if (const Status recorded = comparison.Run(); !recorded.ok()) return session.Fail("ab", recorded);
  if (const Status measured = comparison.MeasureNoise(); !measured.ok())
    return session.Fail("ab", measured);
  return comparison.Answer();
}

}  // namespace statcollect::client
