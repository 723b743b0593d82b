#include <algorithm>
#include <map>

#include <fmt/format.h>

#include "client/commands/commands.h"
#include "client/commands/option_use.h"
#include "client/render/flatten.h"
#include "common/names.h"
#include "common/parse.h"
#include "proto/json.h"

namespace statcollect::client {
namespace {

std::string Dropped(const google::protobuf::Map<std::string, std::uint64_t>& by_cause) {
  const std::map<std::string, std::uint64_t> sorted(by_cause.begin(), by_cause.end());
  std::string text;
  for (const auto& [cause, count] : sorted) {
    if (count > 0) text += (text.empty() ? "" : ", ") + FormatCount(count) + " " + cause;
  }
  return text.empty() ? "0" : text;
}

Table RankTable(const v1::AttemptInfo& attempt) {
  Table table({{"rank", Align::kRight},
               {"host", Align::kLeft, true, Use::kIfItVaries},
               {"pid", Align::kRight, false, Use::kIfItFits},
               {"state", Align::kLeft, false, Use::kIfItVaries},
               {"steps", Align::kRight},
               {"tensors", Align::kRight},
               {"records", Align::kRight},
               {"dropped", Align::kLeft, true, Use::kIfItVaries}});
  for (const v1::RankInfo& rank : attempt.ranks()) {
    table.AddRow({std::to_string(rank.rank()), rank.host(), std::to_string(rank.pid()),
                  rank.state(), StepsText(rank), FormatCount(rank.stat_records()),
                  FormatCount(rank.records()), Dropped(rank.dropped())});
  }
  return table;
}

void AddAttempts(const v1::GetRunResponse& run, Page& page) {
  const std::int64_t now = NowUnixNanos();
  for (const v1::AttemptInfo& attempt : run.attempts()) {
    page.AddHeading(run.attempts_size() == 1
                        ? "Ranks"
                        : fmt::format("Ranks of attempt {}, started {}", attempt.attempt(),
                                      FormatAgo(attempt.start_unix_nanos(), now)));
    page.AddTable(RankTable(attempt));
  }
}

void AddActivations(const v1::GetRunResponse& run, Page& page) {
  if (run.kinds().empty()) return;
  page.AddHeading(fmt::format("Activations ({})", FormatCount(run.activations())));
  Table kinds({{"kind"}, {"activations", Align::kRight}});
  for (const v1::KindCount& kind : run.kinds()) {
    kinds.AddRow({EnumText(*v1::Kind_descriptor(), kind.kind()), FormatCount(kind.activations())});
  }
  page.AddTable(std::move(kinds));
}

// The program's own settings first, as far as their names tell: those of the checklist have
// sections.
void AddConfiguration(const v1::GetRunResponse& run, Page& page) {
  constexpr std::size_t kAllUpTo = 20, kShown = 12;
  std::vector<std::pair<std::string, std::string>> settings(run.config().begin(),
                                                            run.config().end());
  if (settings.empty()) return;
  std::sort(settings.begin(), settings.end(), [](const auto& x, const auto& y) {
    const auto has_section = [](const auto& setting) {
      return setting.first.find('.') != std::string::npos;
    };
    return std::pair(has_section(x), x) < std::pair(has_section(y), y);
  });
  const std::size_t all = settings.size();
  if (all > kAllUpTo) settings.resize(kShown);
  Table config({{"key", Align::kLeft, true}, {"value", Align::kLeft, true}});
  for (const auto& [key, value] : settings) config.AddRow({key, value});
  page.AddHeading(all == settings.size()
                      ? "Configuration"
                      : fmt::format("Configuration (first {} of {})", settings.size(), all));
  page.AddTable(std::move(config));
  if (all > settings.size())
    page.AddSentence(fmt::format("statctl config {} lists all.", Printable(run.summary().run())));
}

// "6 steps (0..5)", "tensors in 2 of the steps 0..4"
std::string ExtentText(const v1::GetRunResponse& run) {
  const v1::RunSummary& summary = run.summary();
  const bool tensors =
      std::any_of(run.attempts().begin(), run.attempts().end(), [](const v1::AttemptInfo& attempt) {
        return std::any_of(attempt.ranks().begin(), attempt.ranks().end(),
                           [](const v1::RankInfo& rank) { return rank.stat_records() > 0; });
      });
  if (!tensors)
    return summary.has_first_step() ? "no tensors, other records in steps " + StepsText(summary)
                                    : "no steps";
  if (summary.steps() < summary.last_step() - summary.first_step() + 1)
    return fmt::format("tensors in {} of the steps {}", FormatCount(summary.steps()),
                       StepsText(summary));
  return fmt::format("{} step{} ({})", FormatCount(summary.steps()),
                     summary.steps() == 1 ? "" : "s", StepsText(summary));
}

std::string Every(std::uint64_t every) {
  if (every == 1) return "every step";
  return fmt::format("every {}{} step", every, every == 2 ? "nd" : "th");
}

// "full statistics every 10th step (overhead 2%: measured 1.7%)". Empty: the run has no overhead
// budget.
std::string OverheadText(const google::protobuf::Map<std::string, std::string>& config) {
  const auto budget = config.find("recording.overhead"),
             steps = config.find("recording.full_steps");
  if (budget == config.end() || steps == config.end()) return {};
  const std::string& text = steps->second;  // "0-13/1, 14-/10, 95-98/1"
  const std::size_t open = text.find("-/");
  const auto every = open == std::string::npos
                         ? std::nullopt
                         : ParseNumber<std::uint64_t>(std::string_view(text).substr(
                               open + 2, text.find(',', open) - open - 2));
  if (!every) return {};
  const auto measured = config.find("recording.overhead_measured");
  return fmt::format(
      "full statistics {} (overhead {}: {})", Every(*every), Printable(budget->second),
      measured == config.end() ? "not measured yet" : "measured " + Printable(measured->second));
}

Page Render(const v1::GetRunResponse& run) {
  const v1::RunSummary& summary = run.summary();
  Page page;
  page.AddSentence(
      fmt::format("is {}: {} of {} ranks{}, {}, {} records, {} dropped, started {}",
                  summary.state(), summary.ranks(), RanksExpected(summary),
                  RanksExpected(summary) == summary.world_size()
                      ? ""
                      : fmt::format(" that record, in a world of {}", summary.world_size()),
                  ExtentText(run), FormatCount(summary.records()), FormatCount(summary.dropped()),
                  FormatAgo(summary.start_unix_nanos(), NowUnixNanos())),
      Printable(summary.run()));
  if (const std::string overhead = OverheadText(run.config()); !overhead.empty())
    page.AddSentence(overhead + "; scalars and batches every step");
  AddAttempts(run, page);
  AddActivations(run, page);
  if (!run.events().empty()) {
    page.AddHeading("Events");
    page.AddTable(EventTable(run.events()));
  }
  AddConfiguration(run, page);
  return page;
}

Table RanksCsv(const v1::GetRunResponse& run) {
  Flattener ranks(*v1::RankInfo::descriptor(), {});
  if (!run.attempts().empty()) {
    for (const v1::RankInfo& rank : run.attempts().rbegin()->ranks()) ranks.Add(rank);
  }
  return std::move(ranks).Take();
}

int ShowRun(Session& session, const std::string& run) {
  v1::GetRunRequest request;
  request.set_run(run);
  const auto response = session.collector().GetRun(request);
  if (!response.ok()) return session.Fail("show " + Printable(run), response.status());
  session.Print(
      *response, [&] { return RanksCsv(*response); }, [&] { return Render(*response); });
  return kExitSame;
}

Status CheckUse(const ShowOptions& o, Format format) {
  return CheckOptionUse(
      {{"--rank", !o.ranks.empty(), o.memory || o.padding || o.events,
        "--memory, --padding or --events"},
       {"--step", !o.steps.empty(), o.memory || o.padding, "--memory or --padding"},
       {"--modules", o.modules, o.memory, "--memory"},
       {"--top", o.top.has_value(), o.memory, "--memory"},
       {"--all", o.all, o.memory, "--memory"},
       {"--input", !o.input.empty(), o.padding, "--padding"},
       {"--kind", !o.kinds.empty(), o.events, "--events"},
       {"--since-step", o.since_step.has_value(), o.events, "--events"},
       {"--follow", o.follow, o.events, "--events"},
       {"--format ort", format == Format::kOrt, o.memory || o.padding, "--memory or --padding"}});
}

}  // namespace

int Show(Session& session, const ShowOptions& o) {
  if (const Status wrong = CheckUse(o, session.options().format); !wrong.ok())
    return session.Fail("show " + Printable(o.run), wrong);
  if (o.memory) {
    MemoryOptions memory{
        .run = o.run, .ranks = o.ranks, .steps = o.steps, .modules = o.modules, .all = o.all};
    memory.top = o.top.value_or(memory.top);
    return Memory(session, memory);
  }
  if (o.padding)
    return Density(session, {.run = o.run, .input = o.input, .ranks = o.ranks, .steps = o.steps});
  if (o.events)
    return Events(session, {.run = o.run,
                            .ranks = o.ranks,
                            .kinds = o.kinds,
                            .since_step = o.since_step,
                            .follow = o.follow});
  return ShowRun(session, o.run);
}

}  // namespace statcollect::client
