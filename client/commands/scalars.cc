#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "client/commands/commands.h"
#include "client/commands/elsewhere.h"
#include "client/commands/scalars_against.h"
#include "client/commands/selection.h"
#include "client/render/flatten.h"
#include "client/render/plot.h"
#include "common/names.h"
#include "common/text.h"
#include "proto/json.h"
#include "proto/text/divergence_text.h"

namespace statcollect::client {
namespace {

constexpr std::size_t kColumnsMax = 6;
constexpr std::size_t kRowsBelowPlots = 12;
constexpr std::size_t kPlotsMax = 6, kPlottedLinesMax = 6;
constexpr std::size_t kNameBytesMax = 4096, kNameWidth = 48, kHeadWidth = 24;

using Series = std::tuple<std::string, std::uint32_t, std::string>;  // name, first rank, RanksOf
using Line = std::pair<std::uint64_t, std::uint32_t>;                // step, micro-batch

// Names may have a thousand characters: whole only where programs read.
std::string Shown(const std::string& name, std::size_t width) {
  return ShortenMiddle(Printable(name, kNameBytesMax), width);
}

// "0", "0-3": whose value it is.
std::string RanksOf(const v1::ScalarRow& row) {
  return row.ranks_size() > 0 ? RanksText(row.ranks()) : std::to_string(row.rank());
}

// Fingerprints of generators' states, for diff: nobody reads their values.
bool IsInternal(const std::string& name) { return name.starts_with("rng/"); }

// Whether tables and plots leave a scalar out.
bool IsHidden(const ScalarsOptions& options, const std::string& name) {
  return !options.all && options.name.empty() && IsInternal(name);
}

// "rng/cpu and rng/python are left out; --all shows them." Nothing if none is.
void AddHidden(const std::set<std::string>& hidden, Page& page) {
  if (hidden.empty()) return;
  std::string names;
  for (const std::string& name : hidden)
    names += (names.empty() ? "" : ", ") + Shown(name, kNameWidth);
  page.AddSentence(fmt::format("Left out, as only diff reads {}: {}. --all shows {}.",
                               hidden.size() == 1 ? "it" : "them", names,
                               hidden.size() == 1 ? "it" : "them"));
}

// The loss comes first, and what is named after one: that is what a person looks for.
int OrderOf(const std::string& name) {
  if (name == "loss") return 0;
  return name.find("loss") != std::string::npos ? 1 : 2;
}

// A plot for each name, a line for each rank or run. Of micro-batches, the mean of the step.
class Plots {
 public:
  // `axis`: that of all values of this name.
  void Add(const std::string& name, const std::string& label, std::uint64_t step, double value,
           Axis axis = Axis::kLinear) {
    auto& [sum, count] = values_[{OrderOf(name), name, axis}][label][step];
    sum += value;
    ++count;
  }

  // Whether there was anything to draw.
  bool AddTo(Page& page) const {
    std::size_t drawn = 0;
    for (const auto& [key, labels] : values_) {
      const auto& [order, name, axis] = key;
      std::vector<PlotLine> lines;
      for (const auto& [label, steps] : labels) {
        if (lines.size() == kPlottedLinesMax) break;
        PlotLine line{.label = label, .points = {}};
        for (const auto& [step, mean] : steps)
          line.points.emplace_back(static_cast<double>(step),
                                   mean.first / static_cast<double>(mean.second));
        lines.push_back(std::move(line));
      }
      if (std::none_of(lines.begin(), lines.end(),
                       [](const auto& line) { return line.points.size() > 1; }))
        continue;
      std::string plot = Plot(lines, axis);
      if (plot.empty()) continue;
      if (drawn++ == kPlotsMax) {
        page.AddSentence(fmt::format("These are {} of {} plots; --name chooses a scalar.",
                                     kPlotsMax, values_.size()));
        return true;
      }
      page.AddHeading(
          Shown(name, kNameWidth) +
          (axis == Axis::kLinear ? "" : ": relative difference, on a logarithmic axis") +
          (lines.size() < labels.size()
               ? fmt::format(" ({} of {} lines)", lines.size(), labels.size())
               : ""));
      page.AddPlot(std::move(plot));
    }
    return drawn > 0;
  }

 private:
  using Steps = std::map<std::uint64_t,
                         std::pair<double, std::uint64_t>>;  // sum and number of the step's values
  // By name, and then by label.
  std::map<std::tuple<int, std::string, Axis>, std::map<std::string, Steps>> values_;
};

// The table below plots: all of it if it is short, else its end.
void AddTable(const ScalarsOptions& options, bool plotted, Table table, Page& page) {
  const std::size_t rows = table.rows();
  const bool cut = plotted && !options.all && rows > kRowsBelowPlots;
  if (cut) table.KeepLast(kRowsBelowPlots);
  page.AddTable(std::move(table));
  if (cut)
    page.AddSentence(
        fmt::format("The last {} of {} rows; --all shows all, --format csv is for programs.",
                    kRowsBelowPlots, FormatCount(rows)));
}

Table LongTable(const v1::ListScalarsResponse& response) {
  Table table({{"name", Align::kLeft, true},
               {"rank", Align::kRight, false, Use::kIfItVaries},
               {"step", Align::kRight},
               {"mb", Align::kRight, false, Use::kIfItVaries},
               {"value", Align::kRight}});
  for (const v1::ScalarRow& row : response.records()) {
    table.AddRow({Shown(row.name(), kNameWidth), RanksOf(row), std::to_string(row.step()),
                  std::to_string(row.micro_batch()), FormatNumber(row.value())});
  }
  return table;
}

// A line a step and micro-batch, a column a name and rank.
Table WideTable(const std::map<Line, std::map<Series, double>>& lines,
                const std::set<Series>& series, bool micro_batches) {
  std::vector<Column> columns = {{"step", Align::kRight}};
  if (micro_batches) columns.push_back({"mb", Align::kRight});
  for (const auto& [name, first, ranks] : series) {
    const bool one = ranks == std::to_string(first);
    columns.push_back(
        {fmt::format("{} ({} {})", Shown(name, kHeadWidth), one ? "rank" : "ranks", ranks),
         Align::kRight, false, Use::kIfItFits});
  }
  Table table(std::move(columns));
  for (const auto& [line, values] : lines) {
    std::vector<std::string> cells = {std::to_string(line.first)};
    if (micro_batches) cells.push_back(std::to_string(line.second));
    for (const Series& column : series) {
      const auto value = values.find(column);
      cells.push_back(value == values.end() ? "-" : FormatNumber(value->second));
    }
    table.AddRow(std::move(cells));
  }
  return table;
}

// Wide if there are few columns and no step has two values of one column.
Table MakeTable(const v1::ListScalarsResponse& response) {
  std::set<Series> series;
  std::map<Line, std::map<Series, double>> lines;
  bool fits = true, micro_batches = false;
  for (const v1::ScalarRow& row : response.records()) {
    const Series column{row.name(), row.rank(), RanksOf(row)};
    series.insert(column);
    fits = lines[{row.step(), row.micro_batch()}].emplace(column, row.value()).second && fits;
    micro_batches = micro_batches || row.micro_batch() > 0;
  }
  return fits && series.size() <= kColumnsMax ? WideTable(lines, series, micro_batches)
                                              : LongTable(response);
}

Result<v1::ListScalarsRequest> MakeRequest(const ScalarsOptions& options, const std::string& run) {
  v1::ListScalarsRequest request;
  request.set_run(run);
  request.set_name(options.name);
  request.set_by_rank(options.by_rank);
  STATCOLLECT_RETURN_IF_ERROR(Select(options.ranks, options.steps, request));
  return request;
}

Result<v1::ListScalarsResponse> Ask(Session& session, const ScalarsOptions& options,
                                    const std::string& run) {
  const auto request = MakeRequest(options, run);
  return request.ok() ? session.collector().ListScalars(*request) : request.status();
}

// --- two runs

nlohmann::ordered_json Number(const std::optional<double>& value) {
  if (!value) return nullptr;
  if (std::isnan(*value)) return "NaN";
  if (std::isinf(*value)) return *value > 0 ? "Infinity" : "-Infinity";
  return *value;
}

std::optional<double> Difference(const ScalarPair& pair) {
  return pair.both() ? std::optional(*pair.b - *pair.a) : std::nullopt;
}
// The difference relative to run A's value.
std::optional<double> Relative(const ScalarPair& pair) {
  if (!pair.both() || *pair.a == 0)
    return pair.both() && *pair.b == 0 ? std::optional(0.0) : std::nullopt;
  return (*pair.b - *pair.a) / std::abs(*pair.a);
}

nlohmann::ordered_json ComparisonJson(const ScalarsOptions& options,
                                      const ScalarComparison& comparison) {
  nlohmann::ordered_json json = {
      {"run_a", options.run}, {"run_b", options.against}, {"same", comparison.same()}};
  json["series"] = nlohmann::ordered_json::array();
  for (const ScalarAgreement& at : comparison.series) {
    nlohmann::ordered_json one = {{"name", at.name},         {"rank", at.rank},
                                  {"compared", at.compared}, {"differ", at.differ},
                                  {"only_a", at.only_a},     {"only_b", at.only_b},
                                  {"first_step", nullptr}};
    if (at.first) one["first_step"] = at.first->step;
    json["series"].push_back(std::move(one));
  }
  json["records"] = nlohmann::ordered_json::array();
  for (const ScalarPair& pair : comparison.pairs) {
    json["records"].push_back({{"name", pair.name},
                               {"rank", pair.rank},
                               {"step", pair.step},
                               {"micro_batch", pair.micro_batch},
                               {"a", Number(pair.a)},
                               {"b", Number(pair.b)},
                               {"difference", Number(Difference(pair))},
                               {"relative", Number(Relative(pair))}});
  }
  return json;
}

Table ToCsv(const ScalarComparison& comparison) {
  Table table(
      {{"name"}, {"rank"}, {"step"}, {"micro_batch"}, {"a"}, {"b"}, {"difference"}, {"relative"}});
  const auto cell = [](const std::optional<double>& value) {
    const auto number = Number(value);
    return number.is_null()     ? ""
           : number.is_string() ? number.get<std::string>()
                                : DumpJson(number, -1);
  };
  for (const ScalarPair& pair : comparison.pairs) {
    table.AddRow({pair.name, std::to_string(pair.rank), std::to_string(pair.step),
                  std::to_string(pair.micro_batch), cell(pair.a), cell(pair.b),
                  cell(Difference(pair)), cell(Relative(pair))});
  }
  return table;
}

std::string ChangeText(const ScalarPair& pair) {
  const std::string change = pair.both() ? FormatChange(*pair.a, *pair.b) : "";
  return change.empty() ? "" : " (" + change + ")";
}

std::string AgreementText(const ScalarAgreement& at) {
  std::string text = fmt::format("{}, rank {}: ", Shown(at.name, kNameWidth), at.rank);
  if (at.compared == 0) return text + "in one run only";
  if (!at.first) {
    text += fmt::format("{} value{}, none differs", FormatCount(at.compared),
                        at.compared == 1 ? "" : "s");
  } else {
    text += fmt::format("first differs at step {}: {} and {}{}; {} of {} values differ",
                        at.first->step, FormatNumber(at.first->a), FormatNumber(at.first->b),
                        ChangeText(*at.first), FormatCount(at.differ), FormatCount(at.compared));
  }
  const std::uint64_t alone = at.only_a + at.only_b;
  return alone == 0 ? text : text + fmt::format("; {} in one run only", FormatCount(alone));
}

Page Render(const ScalarsOptions& options, ScalarComparison comparison) {
  Page page;
  const std::string runs =
      fmt::format("{} and {}", Printable(options.run), Printable(options.against));
  if (comparison.pairs.empty()) {
    page.AddSentence("No scalars in " + runs + " for this selection.");
    return page;
  }
  page.AddSentence(runs, comparison.same() ? "SAME" : "DIFFERENT",
                   comparison.same() ? Tone::kGood : Tone::kWarn);
  std::set<std::string> hidden;
  std::vector<std::string> items;
  for (const ScalarAgreement& at : comparison.series) {
    // One that differs is part of the answer.
    if (IsHidden(options, at.name) && !at.first && at.only_a + at.only_b == 0) {
      hidden.insert(at.name);
    } else {
      items.push_back(AgreementText(at));
    }
  }
  page.AddItems(std::move(items));
  std::erase_if(comparison.pairs,
                [&](const ScalarPair& pair) { return IsHidden(options, pair.name); });
  const bool micro_batches = std::any_of(comparison.pairs.begin(), comparison.pairs.end(),
                                         [](const auto& p) { return p.micro_batch > 0; });
  std::vector<Column> columns = {{"name", Align::kLeft, true},
                                 {"rank", Align::kRight, false, Use::kIfItVaries},
                                 {"step", Align::kRight}};
  if (micro_batches) columns.push_back({"mb", Align::kRight});
  for (const std::string& run : {options.run, options.against})
    columns.push_back({Printable(run), Align::kRight});
  columns.push_back({"difference", Align::kRight, false, Use::kIfItFits});
  columns.push_back({"change", Align::kRight});
  Table table(std::move(columns));
  for (const ScalarPair& pair : comparison.pairs) {
    std::vector<std::string> cells = {Shown(pair.name, kNameWidth), std::to_string(pair.rank),
                                      std::to_string(pair.step)};
    if (micro_batches) cells.push_back(std::to_string(pair.micro_batch));
    cells.insert(cells.end(), {FormatNumber(pair.a), FormatNumber(pair.b),
                               pair.both() && pair.differs() ? FormatNumber(Difference(pair)) : "",
                               pair.both() ? FormatChange(*pair.a, *pair.b) : ""});
    table.AddRow(std::move(cells));
  }
  Plots plots;
  for (const ScalarPair& pair : comparison.pairs) {
    const std::string label = fmt::format(" rank {}", pair.rank);
    if (pair.a) plots.Add(pair.name, Printable(options.run) + label, pair.step, *pair.a);
    if (pair.b) plots.Add(pair.name, Printable(options.against) + label, pair.step, *pair.b);
    const bool is_loss = OrderOf(pair.name) < 2 || !options.name.empty();
    if (const auto relative = Relative(pair); relative && is_loss)
      plots.Add(pair.name, "of" + label, pair.step, std::abs(*relative), Axis::kLogarithmic);
  }
  const bool plotted = plots.AddTo(page);
  if (!comparison.pairs.empty()) AddTable(options, plotted, std::move(table), page);
  AddHidden(hidden, page);
  return page;
}

Page Render(Session& session, const ScalarsOptions& options, v1::ListScalarsResponse response) {
  std::set<std::string> hidden;
  auto& records = *response.mutable_records();
  records.erase(std::remove_if(records.begin(), records.end(),
                               [&](const v1::ScalarRow& row) {
                                 if (!IsHidden(options, row.name())) return false;
                                 hidden.insert(row.name());
                                 return true;
                               }),
                records.end());
  Page page;
  if (records.empty() && hidden.empty()) {
    page.AddSentence(NothingSelected(
        "scalars", MakeRequest(options, options.run).value(),
        [&](const auto& all) { return session.collector().ListScalars(all); },
        "statagent.log_scalar(\"loss\", loss) records one."));
  } else if (!records.empty()) {
    Plots plots;
    for (const v1::ScalarRow& row : records)
      plots.Add(row.name(), "rank " + RanksOf(row), row.step(), row.value());
    const bool plotted = plots.AddTo(page);
    AddTable(options, plotted, MakeTable(response), page);
  }
  AddHidden(hidden, page);
  return page;
}

int Compare(Session& session, const ScalarsOptions& options) {
  const std::string attempted =
      "scalars " + Printable(options.run) + " --against " + Printable(options.against);
  const auto a = Ask(session, options, options.run);
  if (!a.ok()) return session.Fail(attempted, a.status());
  const auto b = Ask(session, options, options.against);
  if (!b.ok()) return session.Fail(attempted, b.status());
  const ScalarComparison comparison = CompareScalars(*a, *b);
  switch (session.options().format) {
    case Format::kJson:
      session.PrintLine(DumpJson(ComparisonJson(options, comparison)));
      break;
    case Format::kCsv:
      session.PrintCsv(ToCsv(comparison));
      break;
    default:
      session.PrintPage(Render(options, comparison));
  }
  const bool compared = std::any_of(comparison.series.begin(), comparison.series.end(),
                                    [](const auto& at) { return at.compared > 0; });
  return !compared ? kExitNoAnswer : comparison.same() ? kExitSame : kExitDiverged;
}

}  // namespace

int Scalars(Session& session, const ScalarsOptions& options) {
  if (!options.against.empty()) return Compare(session, options);
  const std::string attempted = "scalars " + Printable(options.run);
  const auto response = Ask(session, options, options.run);
  if (!response.ok()) return session.Fail(attempted, response.status());
  session.Print(
      *response, [&] { return FlattenRecords(response->records()); },
      [&] { return Render(session, options, *response); });
  return kExitSame;
}

}  // namespace statcollect::client
