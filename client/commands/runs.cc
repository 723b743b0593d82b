#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "client/commands/commands.h"
#include "client/commands/glob.h"
#include "client/render/flatten.h"
#include "common/names.h"

namespace statcollect::client {
namespace {

// The number of twins of each run, by its name.
using TwinCounts = std::map<std::string, std::size_t>;

std::string NameCell(const v1::RunSummary& run, const TwinCounts& hidden) {
  if (!run.twin_of().empty()) return "  " + run.run();
  const auto twins = hidden.find(run.run());
  if (twins == hidden.end()) return run.run();
  return fmt::format("{} (+{} twin{})", run.run(), twins->second, twins->second == 1 ? "" : "s");
}

std::string RanksCell(const v1::RunSummary& run) {
  return run.ranks() == RanksExpected(run)
             ? std::to_string(run.ranks())
             : fmt::format("{} of {}", run.ranks(), RanksExpected(run));
}

// `hidden`: twins that are only counted.
Page Render(const v1::ListRunsResponse& response, const TwinCounts& hidden) {
  Page page;
  if (response.runs().empty()) {
    page.AddSentence("No runs yet. To record one: statctl run base -- python train.py");
    return page;
  }
  Table table({{"run", Align::kLeft, true},
               {"state"},
               {"ranks", Align::kRight},
               {"steps", Align::kRight},
               {"records", Align::kRight},
               {"attempts", Align::kRight, false, Use::kIfItVaries},
               {"dropped", Align::kRight, false, Use::kIfItVaries},
               {"started"}});
  const std::int64_t now = NowUnixNanos();
  for (const v1::RunSummary& run : response.runs()) {
    table.AddRow({NameCell(run, hidden), run.state(), RanksCell(run), StepsText(run),
                  FormatCount(run.records()), std::to_string(run.attempts()),
                  FormatCount(run.dropped()), FormatAgo(run.start_unix_nanos(), now)});
  }
  page.AddTable(std::move(table));
  return page;
}

// Keeps what was asked for, in the order asked for.
void Choose(const RunsOptions& options, v1::ListRunsResponse& response) {
  auto& runs = *response.mutable_runs();
  runs.erase(std::remove_if(runs.begin(), runs.end(),
                            [&](const v1::RunSummary& run) {
                              return (!options.filter.empty() &&
                                      !MatchesGlob(options.filter, run.run())) ||
                                     (!options.state.empty() && options.state != run.state());
                            }),
             runs.end());
  const auto key = [&](const v1::RunSummary& run) -> std::uint64_t {
    if (options.sort == "steps") return run.steps();
    if (options.sort == "records") return run.records();
    return options.sort == "start" ? static_cast<std::uint64_t>(run.start_unix_nanos()) : 0;
  };
  std::stable_sort(runs.begin(), runs.end(),
                   [&](const auto& x, const auto& y) { return key(x) > key(y); });
}

// Removes the twins of runs that are in the list, and counts them.
TwinCounts HideTwins(v1::ListRunsResponse& response) {
  auto& runs = *response.mutable_runs();
  std::set<std::string> names;
  for (const v1::RunSummary& run : runs) names.insert(run.run());
  TwinCounts hidden;
  runs.erase(std::remove_if(runs.begin(), runs.end(),
                            [&](const v1::RunSummary& run) {
                              if (!names.contains(run.twin_of())) return false;
                              ++hidden[run.twin_of()];
                              return true;
                            }),
             runs.end());
  return hidden;
}

// Moves twins to below their base.
void PutTwinsBelow(v1::ListRunsResponse& response) {
  auto& runs = *response.mutable_runs();
  std::map<std::string, int> places;
  for (int i = 0; i < runs.size(); ++i) places.emplace(runs[i].run(), i);
  const auto place = [&](const v1::RunSummary& run) {
    const auto base = places.find(run.twin_of());
    const int own = places.at(run.run());
    return base == places.end() ? std::pair(own, -1) : std::pair(base->second, own);
  };
  std::sort(runs.begin(), runs.end(),
            [&](const auto& x, const auto& y) { return place(x) < place(y); });
}

// Why nothing is left: which states and names there are.
std::string NothingLeft(const RunsOptions& options, const std::set<std::string>& states,
                        std::size_t runs) {
  std::string text = fmt::format("None of the {} runs", FormatCount(runs));
  if (!options.filter.empty())
    text += fmt::format(" is named '{}'", Printable(options.filter, 200));
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
  TwinCounts hidden;
  if (!options.twins) hidden = HideTwins(*response);
  Choose(options, *response);
  if (options.twins) PutTwinsBelow(*response);
  session.Print(
      *response, [&] { return FlattenRecords(response->runs()); },
      [&] {
        if (all == 0 || !response->runs().empty()) return Render(*response, hidden);
        Page page;
        page.AddSentence(NothingLeft(options, states, all));
        if (!hidden.empty()) page.AddSentence("Twins are listed with --twins.");
        return page;
      });
  return kExitSame;
}

}  // namespace statcollect::client
