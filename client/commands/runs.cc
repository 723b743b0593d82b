#include <algorithm>
#include <cstdint>
#include <set>

#include <fmt/format.h>

#include "client/commands/commands.h"
#include "client/commands/glob.h"
#include "client/render/flatten.h"
#include "common/names.h"

namespace statcollect::client {
namespace {

std::string RanksCell(const v1::RunSummary& run) {
  return run.ranks() == RanksExpected(run) ? std::to_string(run.ranks())
                                           : fmt::format("{} of {}", run.ranks(), RanksExpected(run));
}

Page Render(const v1::ListRunsResponse& response) {
  Page page;
  if (response.runs().empty()) {
    page.AddSentence(
        "No runs yet: start a training script that calls statagent.watch(model), with STATAGENT_RUN=<name>.");
    return page;
  }
  Table table({{"run", Align::kLeft, true},
               {"state"},
               {"ranks", Align::kRight},
               {"steps", Align::kRight},
               {"records", Align::kRight},
               {"attempts", Align::kRight},
               {"dropped", Align::kRight},
               {"started"}});
  const std::int64_t now = NowUnixNanos();
  for (const v1::RunSummary& run : response.runs()) {
    table.AddRow({run.run(), run.state(), RanksCell(run), StepsText(run), FormatCount(run.records()),
                  std::to_string(run.attempts()), FormatCount(run.dropped()),
                  FormatAgo(run.start_unix_nanos(), now)});
  }
  page.AddTable(std::move(table));
  return page;
}

// Keeps what was asked for, in the order asked for.
void Choose(const RunsOptions& options, v1::ListRunsResponse& response) {
  auto& runs = *response.mutable_runs();
  runs.erase(std::remove_if(runs.begin(), runs.end(),
                            [&](const v1::RunSummary& run) {
                              return (!options.filter.empty() && !MatchesGlob(options.filter, run.run())) ||
                                     (!options.state.empty() && options.state != run.state());
                            }),
             runs.end());
  const auto key = [&](const v1::RunSummary& run) -> std::uint64_t {
    if (options.sort == "steps") return run.steps();
    if (options.sort == "records") return run.records();
    return options.sort == "start" ? static_cast<std::uint64_t>(run.start_unix_nanos()) : 0;
  };
  std::stable_sort(runs.begin(), runs.end(), [&](const auto& x, const auto& y) { return key(x) > key(y); });
}

// Why nothing is left: which states and names there are.
std::string NothingLeft(const RunsOptions& options, const std::set<std::string>& states, std::size_t runs) {
  std::string text = fmt::format("None of the {} runs", FormatCount(runs));
  if (!options.filter.empty()) text += fmt::format(" is named '{}'", Printable(options.filter, 200));
  if (!options.filter.empty() && !options.state.empty()) text += " and";
  if (!options.state.empty()) {
    std::string known;
    for (const std::string& state : states) known += (known.empty() ? "" : ", ") + state;
    text += fmt::format(" is {}; there are {}", Printable(options.state, 100), known);
  }
  return text + ".";
}

}  // namespace

int ListRuns(Session& session, const RunsOptions& options) {
  auto response = session.collector().ListRuns();
  if (!response.ok()) return session.Fail("runs", response.status());
  std::set<std::string> states;
  for (const v1::RunSummary& run : response->runs()) states.insert(run.state());
  const auto all = static_cast<std::size_t>(response->runs_size());
  Choose(options, *response);
  session.Print(
      *response, [&] { return FlattenRecords(response->runs()); },
      [&] {
        if (all == 0 || !response->runs().empty()) return Render(*response);
        Page page;
        page.AddSentence(NothingLeft(options, states, all));
        return page;
      });
  return kExitSame;
}

}  // namespace statcollect::client
