#include <algorithm>
#include <iterator>
#include <map>
#include <optional>
#include <set>

#include <fmt/format.h>

#include "client/commands/commands.h"
#include "client/commands/elsewhere.h"
#include "client/commands/selection.h"
#include "client/commands/update_ratio.h"
#include "client/exports/records_decoder.h"
#include "client/render/flatten.h"
#include "client/render/plot.h"
#include "common/choice.h"
#include "common/names.h"
#include "common/step_set.h"
#include "common/text.h"
#include "proto/json.h"
#include "proto/text/divergence_text.h"

namespace statcollect::client {
namespace {

using Side = v1::ObservationSide;

struct Statistic {
  std::string_view name;
  std::optional<double> (*get)(const Side&);
  enum { kAlways, kIfNonzero, kOnRequest } shown;  // in the table, unless --stat chooses
};

template <typename T>
std::optional<double> If(bool has, T value) {
  return has ? std::optional(static_cast<double>(value)) : std::nullopt;
}

constexpr Statistic kStatistics[] = {
    {"min", [](const Side& s) { return If(s.has_min(), s.min()); }, Statistic::kAlways},
    {"max", [](const Side& s) { return If(s.has_max(), s.max()); }, Statistic::kAlways},
    {"mean", [](const Side& s) { return If(s.has_mean(), s.mean()); }, Statistic::kAlways},
    {"std", [](const Side& s) { return If(s.has_std(), s.std()); }, Statistic::kAlways},
    {"l1", [](const Side& s) { return If(s.has_l1(), s.l1()); }, Statistic::kOnRequest},
    {"l2", [](const Side& s) { return If(s.has_l2(), s.l2()); }, Statistic::kAlways},
    {"nan", [](const Side& s) { return If(s.has_nan(), s.nan()); }, Statistic::kIfNonzero},
    {"pos_inf", [](const Side& s) { return If(s.has_pos_inf(), s.pos_inf()); },
     Statistic::kIfNonzero},
    {"neg_inf", [](const Side& s) { return If(s.has_neg_inf(), s.neg_inf()); },
     Statistic::kIfNonzero},
    {"zero", [](const Side& s) { return If(s.has_zero(), s.zero()); }, Statistic::kOnRequest},
    {"numel", [](const Side& s) { return If(s.has_numel(), s.numel()); }, Statistic::kOnRequest},
};

using Chosen = std::vector<const Statistic*>;

constexpr std::string_view kUpdateRatio = "update_ratio";

const Statistic* FindStatistic(const std::string& name) {
  const auto found = std::find_if(std::begin(kStatistics), std::end(kStatistics),
                                  [&](const auto& s) { return s.name == name; });
  return found == std::end(kStatistics) ? nullptr : found;
}

Chosen Choose(const std::vector<std::string>& names) {
  Chosen chosen;
  for (const std::string& name : names) chosen.push_back(FindStatistic(name));
  return chosen;
}

Chosen ChooseFor(const v1::GetSeriesResponse& response) {
  Chosen chosen;
  for (const Statistic& statistic : kStatistics) {
    const bool nonzero = std::any_of(
        response.records().begin(), response.records().end(),
        [&](const auto& point) { return statistic.get(point.stats()).value_or(0) != 0; });
    if (statistic.shown == Statistic::kAlways ||
        (statistic.shown == Statistic::kIfNonzero && nonzero)) {
      chosen.push_back(&statistic);
    }
  }
  return chosen;
}

// A column that says where a point belongs; left out of the table if all its values are `boring`.
struct OptionalColumn {
  Column column;
  std::string (*get)(const v1::SeriesPoint&);
  std::string_view boring;  // the usual value
};

const OptionalColumn kPlaces[] = {
    {{"mb", Align::kRight, false, Use::kIfItVaries},
     [](const v1::SeriesPoint& p) { return std::to_string(p.micro_batch()); },
     "0"},
    {{"call", Align::kRight, false, Use::kIfItVaries},
     [](const v1::SeriesPoint& p) { return std::to_string(p.call()); },
     "0"},
    {{"path", Align::kLeft, false, Use::kIfItVaries},
     [](const v1::SeriesPoint& p) { return p.output_path(); },
     ""},
    {{"mode", Align::kLeft, false, Use::kIfItVaries},
     [](const v1::SeriesPoint& p) { return p.mode(); },
     "train"},
};

std::string KindText(const v1::SeriesPoint& point) {
  return EnumText(*v1::Kind_descriptor(), point.kind());
}

// "3"; "0-7" if their parts were put together.
std::string RanksOf(const v1::SeriesPoint& point) {
  return point.ranks_size() > 0 ? RanksText(point.ranks()) : std::to_string(point.rank());
}

std::vector<const OptionalColumn*> InterestingPlaces(const v1::GetSeriesResponse& response) {
  std::vector<const OptionalColumn*> places;
  for (const OptionalColumn& place : kPlaces) {
    if (std::any_of(response.records().begin(), response.records().end(),
                    [&](const auto& point) { return place.get(point) != place.boring; })) {
      places.push_back(&place);
    }
  }
  return places;
}

Table MakeTable(const v1::GetSeriesResponse& response, const Chosen& statistics) {
  const auto places = InterestingPlaces(response);
  std::vector<Column> columns = {{"step", Align::kRight},
                                 {"rank", Align::kRight, false, Use::kIfItVaries},
                                 {"kind", Align::kLeft, false, Use::kIfItVaries}};
  for (const OptionalColumn* place : places) columns.push_back(place->column);
  for (const Statistic* statistic : statistics)
    columns.push_back({std::string(statistic->name), Align::kRight, false, Use::kIfItFits});
  Table table(std::move(columns));
  for (const v1::SeriesPoint& point : response.records()) {
    std::vector<std::string> cells = {std::to_string(point.step()), RanksOf(point),
                                      KindText(point)};
    for (const OptionalColumn* place : places) cells.push_back(place->get(point));
    for (const Statistic* statistic : statistics)
      cells.push_back(FormatNumber(statistic->get(point.stats())));
    table.AddRow(std::move(cells));
  }
  return table;
}

// One for each kind, in the order of the records: outputs and gradients have nothing in common but
// a name.
std::vector<std::pair<std::string, std::string>> MakePlots(const v1::GetSeriesResponse& response,
                                                           const Statistic& statistic) {
  const auto places = InterestingPlaces(response);
  struct OfKind {
    std::string kind;
    std::map<std::string, PlotLine> lines;
    std::set<std::uint64_t> steps;
  };
  std::vector<OfKind> kinds;
  for (const v1::SeriesPoint& point : response.records()) {
    auto of = std::find_if(kinds.begin(), kinds.end(),
                           [&](const OfKind& known) { return known.kind == KindText(point); });
    if (of == kinds.end())
      of = kinds.insert(of, {.kind = KindText(point), .lines = {}, .steps = {}});
    std::string label = fmt::format("{} rank {}", of->kind, RanksOf(point));
    for (const OptionalColumn* place : places)
      label += fmt::format(" {} {}", place->column.title, Printable(place->get(point)));
    PlotLine& line = of->lines[label];
    line.label = label;
    of->steps.insert(point.step());
    if (const auto value = statistic.get(point.stats()))
      line.points.emplace_back(static_cast<double>(point.step()), *value);
  }
  std::vector<std::pair<std::string, std::string>> plots;
  for (OfKind& of : kinds) {
    std::vector<PlotLine> all;
    for (auto& [label, line] : of.lines) all.push_back(std::move(line));
    std::string plot = of.steps.size() < 2 ? "" : Plot(all);
    if (!plot.empty()) plots.emplace_back(of.kind, std::move(plot));
  }
  return plots;
}

Page Render(const v1::GetSeriesResponse& response, const SeriesOptions& options,
            const Chosen& chosen) {
  Page page;
  page.AddTable(MakeTable(response, chosen.empty() ? ChooseFor(response) : chosen));
  if (chosen.size() != 1) return page;
  const auto plots = MakePlots(response, *chosen.front());
  for (const auto& [kind, plot] : plots) {
    page.AddHeading(fmt::format("{} of {}{}", chosen.front()->name, Printable(options.activation),
                                plots.size() == 1 ? "" : ", " + kind));
    page.AddPlot(plot);
  }
  return page;
}

Status MakeRequest(const SeriesOptions& options, v1::GetSeriesRequest& request) {
  request.set_run(options.run);
  request.set_activation(options.activation);
  request.set_output_path(options.output_path);
  request.set_by_rank(options.by_rank);
  STATCOLLECT_RETURN_IF_ERROR(Select(options.ranks, options.steps, request));
  const auto kind = ParseOneKind(options.kind);
  if (!kind.ok()) return kind.status();
  request.set_kind(*kind);
  return Status::Ok();
}

v1::ListScalarsResponse ToScalars(const SeriesOptions& options, const UpdateRatios& ratios,
                                  const StepSet& wanted) {
  v1::ListScalarsResponse response;
  for (const auto& [place, ratio] : ratios.ratios()) {
    if (!wanted.Contains(place.second)) continue;
    const std::pair<std::string_view, double> values[] = {
        {"", ratio.value}, {"_low", ratio.low}, {"_high", ratio.high}};
    for (const auto& [suffix, value] : values) {
      v1::ScalarRow& row = *response.add_records();
      row.set_run(options.run);
      row.set_rank(place.first);
      row.mutable_ranks()->Assign(ratios.ranks().begin(), ratios.ranks().end());
      row.set_step(place.second);
      row.set_name(fmt::format("{}/{}{}", options.activation, kUpdateRatio, suffix));
      row.set_value(value);
    }
  }
  return response;
}

Page RenderRatios(const SeriesOptions& options, const UpdateRatios& ratios, const StepSet& wanted) {
  Page page;
  Table table({{"step", Align::kRight},
               {"rank", Align::kRight, false, Use::kIfItVaries},
               {std::string(kUpdateRatio), Align::kRight},
               {"likely from", Align::kRight},
               {"to", Align::kRight}});
  std::map<std::uint32_t, PlotLine> lines;
  const std::string all_ranks = ratios.ranks().empty() ? "" : RanksText(ratios.ranks());
  for (const auto& [place, ratio] : ratios.ratios()) {
    const auto& [rank, step] = place;
    if (!wanted.Contains(step)) continue;
    const std::string whose = all_ranks.empty() ? std::to_string(rank) : all_ranks;
    table.AddRow({std::to_string(step), whose, FormatNumber(ratio.value), FormatNumber(ratio.low),
                  FormatNumber(ratio.high)});
    lines[rank].label = "rank " + whose;
    lines[rank].points.emplace_back(static_cast<double>(step), ratio.value);
  }
  page.AddSentence(
      fmt::format("How far each update moved {}: ||change|| / ||weight||, estimated from sketches.",
                  Printable(options.activation)));
  page.AddTable(std::move(table));
  std::vector<PlotLine> all;
  for (auto& [rank, line] : lines) all.push_back(std::move(line));
  if (std::string plot = Plot(all); !plot.empty()) page.AddPlot(std::move(plot));
  return page;
}

Status ShowUpdateRatios(Session& session, const SeriesOptions& options) {
  if (!options.kind.empty() && options.kind != "weight")
    return {Code::kInvalidArgument,
            "--stat update_ratio is of weights; found --kind " + Printable(options.kind)};
  const auto wanted = StepSet::Parse(options.steps);
  if (!wanted.ok()) return wanted.status();
  v1::ReadRecordsRequest request;
  request.set_run(options.run);
  STATCOLLECT_RETURN_IF_ERROR(Select(options.ranks, options.steps, request));
  // The step before the first is needed too, and those between.
  request.set_steps(
      fmt::format("{}-{}", wanted->first() - std::min<std::uint64_t>(1, wanted->first()),
                  wanted->last() == StepSet::kLastStep ? "" : std::to_string(wanted->last())));
  request.add_kinds(v1::KIND_WEIGHT);
  request.set_sketches(true);
  request.set_whole(!options.by_rank && options.ranks.empty());
  UpdateRatios ratios(options.activation);
  RecordsDecoder decoder(ratios);
  STATCOLLECT_RETURN_IF_ERROR(session.collector().ReadRecords(
      request, [&](const auto& message) { return decoder.Take(message); }));
  if (!ratios.seen())
    return {Code::kNotFound,
            "no record of a weight '" + Printable(options.activation) +
                "' in these steps and ranks; statctl summary lists the names, and watch "
                "records weights with its optimizer"};
  const v1::ListScalarsResponse rows = ToScalars(options, ratios, *wanted);
  session.Print(
      rows, [&] { return FlattenRecords(rows.records(), kIdentityColumns); },
      [&] { return RenderRatios(options, ratios, *wanted); });
  return Status::Ok();
}

}  // namespace

Result<std::vector<std::string>> ParseSeriesStatistics(const std::string& text) {
  std::vector<std::string> names = SplitCommas(text);
  std::vector<std::string> known;
  for (const Statistic& s : kStatistics) known.emplace_back(s.name);
  known.emplace_back(kUpdateRatio);
  for (const std::string& name : names) {
    if (name == kUpdateRatio && names.size() > 1)
      return Status(Code::kInvalidArgument, "found update_ratio beside others; expected it alone");
    if (name != kUpdateRatio && FindStatistic(name) == nullptr)
      return Status(Code::kInvalidArgument, NotOneOf(name, known));
  }
  return names;
}

int Series(Session& session, const SeriesOptions& options) {
  const std::string attempted =
      "series " + Printable(options.run) + " " + Printable(options.activation);
  if (options.stats == kUpdateRatio) {
    const Status shown = ShowUpdateRatios(session, options);
    return shown.ok() ? kExitSame : session.Fail(attempted, shown);
  }
  v1::GetSeriesRequest request;
  if (const Status wrong = MakeRequest(options, request); !wrong.ok())
    return session.Fail(attempted, wrong);
  const auto names = ParseSeriesStatistics(options.stats);
  if (!names.ok()) return session.Fail(attempted, names.status());
  const auto response = session.collector().GetSeries(request);
  if (!response.ok()) return session.Fail(attempted, response.status());
  session.Print(
      *response, [&] { return FlattenRecords(response->records(), kIdentityColumns); },
      [&] {
        if (!response->records().empty()) return Render(*response, options, Choose(*names));
        Page page;
        page.AddSentence(NothingSelected(
            "records of " + Printable(options.activation), request,
            [&](const auto& wider) { return session.collector().GetSeries(wider); },
            "they have been purged"));
        return page;
      });
  return kExitSame;
}

}  // namespace statcollect::client
