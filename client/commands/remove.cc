// statctl rm: removes runs by name or pattern, after it has said which.
#include <algorithm>
#include <iostream>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "client/commands/commands.h"
#include "client/commands/glob.h"
#include "common/names.h"
#include "proto/json.h"

namespace statcollect::client {
namespace {

using Runs = std::vector<v1::RunSummary>;

std::string Describe(const v1::RunSummary& run) {
  return fmt::format("'{}' ({}, {} records, started {})", Printable(run.run()), run.state(),
                     FormatCount(run.records()), FormatAgo(run.start_unix_nanos(), NowUnixNanos()));
}

// Says what would be lost, and asks.
bool Confirm(const Runs& runs) {
  if (runs.size() == 1)
    return Confirms(fmt::format("Remove run {} with all its data?", Describe(runs.front())));
  for (const v1::RunSummary& run : runs) std::cerr << "  " << Describe(run) << '\n';
  return Confirms(fmt::format("Remove these {} runs with all their data?", runs.size()));
}

// Each run once, by name. kNotFound: a name or pattern that no run has.
Result<Runs> Expand(Session& session, const std::vector<std::string>& wanted) {
  Runs runs;
  const bool listed = wanted.size() > 1 || IsGlob(wanted.front());
  if (!listed) {
    v1::GetRunRequest question;
    question.set_run(wanted.front());
    auto found = session.collector().GetRun(question);
    if (!found.ok()) return found.status();
    runs.push_back(found->summary());
    return runs;
  }
  const auto all = session.collector().ListRuns();
  if (!all.ok()) return all.status();
  for (const std::string& name : wanted) {
    const auto matches = [&](const v1::RunSummary& run) {
      return IsGlob(name) ? MatchesGlob(name, run.run()) : name == run.run();
    };
    if (std::none_of(all->runs().begin(), all->runs().end(), matches))
      return Status(Code::kNotFound,
                    fmt::format("no run {} '{}'; nothing was removed; statctl runs lists them",
                                IsGlob(name) ? "matches" : "is named", Printable(name)));
    for (const v1::RunSummary& run : all->runs()) {
      if (matches(run)) runs.push_back(run);
    }
  }
  std::sort(runs.begin(), runs.end(),
            [](const auto& x, const auto& y) { return x.run() < y.run(); });
  runs.erase(std::unique(runs.begin(), runs.end(),
                         [](const auto& x, const auto& y) { return x.run() == y.run(); }),
             runs.end());
  return runs;
}

// Twins of these runs that are not among them, each behind its run. None if the runs cannot be
// listed.
Runs TwinsOf(Session& session, const Runs& runs) {
  Runs twins;
  const auto all = session.collector().ListRuns();
  if (!all.ok()) return twins;
  for (const v1::RunSummary& run : all->runs()) {
    const auto is = [](const std::string& name) {
      return [&name](const v1::RunSummary& other) { return other.run() == name; };
    };
    if (std::any_of(runs.begin(), runs.end(), is(run.twin_of())) &&
        std::none_of(runs.begin(), runs.end(), is(run.run())))
      twins.push_back(run);
  }
  return twins;
}

std::string Joined(const Runs& runs) {
  std::string text;
  for (const v1::RunSummary& run : runs) text += (text.empty() ? "" : ", ") + Describe(run);
  return text;
}

// One after the other; ends at the first that fails.
int Remove(Session& session, const std::string& attempted, const Runs& runs, bool force,
           bool several) {
  nlohmann::ordered_json removed = nlohmann::ordered_json::array();
  for (const v1::RunSummary& run : runs) {
    v1::DeleteRunRequest request;
    request.set_run(run.run());
    request.set_force(force);
    const auto response = session.collector().DeleteRun(request);
    if (!response.ok()) {
      const std::string before =
          several ? fmt::format("; removed before: {} of {}", removed.size(), runs.size()) : "";
      return session.Fail(attempted,
                          {response.status().code(), response.status().message() + before});
    }
    nlohmann::ordered_json one = ToJson(*response);
    if (several) one["run"] = run.run();
    removed.push_back(std::move(one));
    if (session.options().format == Format::kJson) continue;
    session.Remark(fmt::format("removed run '{}': {} attempt{}, {} records", Printable(run.run()),
                               response->attempts(), response->attempts() == 1 ? "" : "s",
                               FormatCount(response->records())));
  }
  if (session.options().format == Format::kJson)
    session.PrintLine(
        DumpJson(several ? nlohmann::ordered_json{{"removed", removed}} : removed.front()));
  return kExitSame;
}

}  // namespace

int RemoveRuns(Session& session, const RemoveOptions& options) {
  std::string attempted = "rm";
  for (const std::string& run : options.runs) attempted += " " + Printable(run);
  auto runs = Expand(session, options.runs);
  if (!runs.ok()) return session.Fail(attempted, runs.status());
  const Runs twins = TwinsOf(session, *runs);
  if (options.twins) runs->insert(runs->end(), twins.begin(), twins.end());
  if (!options.yes) {
    if (!session.terminal().in)
      return UsageError(attempted + ": cannot ask without a terminal; add --yes to remove " +
                        Joined(*runs));
    if (!Confirm(*runs)) return UsageError(attempted + ": not confirmed; nothing was removed");
  }
  const bool several = options.runs.size() > 1 || IsGlob(options.runs.front()) || options.twins;
  const int code = Remove(session, attempted, *runs, options.force, several);
  if (code == kExitSame && !twins.empty() && !options.twins) {
    session.Remark(fmt::format(
        "{} twin{} of {} stay{}, such as '{}'; rm --twins removes them with their run",
        twins.size(), twins.size() == 1 ? "" : "s", runs->size() == 1 ? "it" : "these runs",
        twins.size() == 1 ? "s" : "", Printable(twins.front().run())));
  }
  return code;
}

}  // namespace statcollect::client
