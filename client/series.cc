#include <algorithm>
#include <iterator>
#include <map>
#include <optional>

#include <fmt/format.h>
#include <grpcpp/client_context.h>
#include <grpcpp/support/status.h>

#include "client/commands.h"
#include "client/plot.h"
#include "common/names.h"
#include "proto/json.h"

namespace statcollect::client {
namespace {

using Side = v1::ObservationSide;

struct Statistic {
  std::string_view name;
  std::optional<double> (*get)(const Side&);
};

template <typename T>
std::optional<double> If(bool has, T value) {
  return has ? std::optional(static_cast<double>(value)) : std::nullopt;
}

constexpr Statistic kStatistics[] = {
    {"min", [](const Side& s) { return If(s.has_min(), s.min()); }},
    {"max", [](const Side& s) { return If(s.has_max(), s.max()); }},
    {"mean", [](const Side& s) { return If(s.has_mean(), s.mean()); }},
    {"std", [](const Side& s) { return If(s.has_std(), s.std()); }},
    {"l1", [](const Side& s) { return If(s.has_l1(), s.l1()); }},
    {"l2", [](const Side& s) { return If(s.has_l2(), s.l2()); }},
    {"nan", [](const Side& s) { return If(true, s.nan()); }},
    {"pos_inf", [](const Side& s) { return If(true, s.pos_inf()); }},
    {"neg_inf", [](const Side& s) { return If(true, s.neg_inf()); }},
    {"zero", [](const Side& s) { return If(true, s.zero()); }},
    {"numel", [](const Side& s) { return If(true, s.numel()); }},
};

Result<std::vector<const Statistic*>> Choose(const std::vector<std::string>& wanted) {
  std::vector<const Statistic*> chosen;
  std::string known;
  for (const Statistic& statistic : kStatistics) {
    known += (known.empty() ? "" : ", ") + std::string(statistic.name);
    if (wanted.empty()) chosen.push_back(&statistic);
  }
  for (const std::string& name : wanted) {
    const auto found = std::find_if(std::begin(kStatistics), std::end(kStatistics),
                                    [&](const auto& s) { return s.name == name; });
    if (found == std::end(kStatistics)) {
      return Status(Code::kInvalidArgument,
                    "--stat: '" + Printable(name) + "' is no statistic; expected " + known);
    }
    chosen.push_back(found);
  }
  return chosen;
}

Table MakeTable(const v1::GetSeriesResponse& response, const std::vector<const Statistic*>& statistics,
                bool csv) {
  std::vector<Column> columns = {
      {"rank", Align::kRight}, {"step", Align::kRight}, {"micro_batch", Align::kRight}, {"kind"},
      {"activation"},          {"output_path"},         {"call", Align::kRight},        {"mode"}};
  if (!csv)
    columns = {{"step", Align::kRight}, {"rank", Align::kRight}, {"kind"}, {"path"}, {"mb", Align::kRight}};
  for (const Statistic* statistic : statistics)
    columns.push_back({std::string(statistic->name), Align::kRight});
  Table table(std::move(columns));
  for (const v1::SeriesPoint& point : response.records()) {
    const std::string kind = EnumText(*v1::Kind_descriptor(), point.kind());
    std::vector<std::string> cells = {std::to_string(point.step()), std::to_string(point.rank()),
                                      point.mode() == "train" ? kind : kind + " (" + point.mode() + ")",
                                      point.output_path(), std::to_string(point.micro_batch())};
    if (csv) {
      cells = {std::to_string(point.rank()),
               std::to_string(point.step()),
               std::to_string(point.micro_batch()),
               kind,
               point.activation(),
               point.output_path(),
               std::to_string(point.call()),
               point.mode()};
    }
    for (const Statistic* statistic : statistics) {
      const auto value = statistic->get(point.stats());
      cells.push_back(csv ? (value ? fmt::format("{}", *value) : "") : FormatNumber(value));
    }
    table.AddRow(std::move(cells));
  }
  return table;
}

std::string MakePlot(const v1::GetSeriesResponse& response, const Statistic& statistic) {
  std::map<std::string, PlotLine> lines;
  for (const v1::SeriesPoint& point : response.records()) {
    const std::string label =
        fmt::format("{}{} rank {}", EnumText(*v1::Kind_descriptor(), point.kind()),
                    point.mode() == "train" ? "" : " (" + point.mode() + ")", point.rank());
    PlotLine& line = lines[label];
    line.label = label;
    if (const auto value = statistic.get(point.stats()))
      line.points.emplace_back(static_cast<double>(point.step()), *value);
  }
  std::vector<PlotLine> all;
  for (auto& [label, line] : lines) all.push_back(std::move(line));
  return Plot(all);
}

}  // namespace

int Series(Session& session, const SeriesOptions& options) {
  v1::GetSeriesRequest request;
  request.set_run(options.run);
  request.set_activation(options.activation);
  request.set_steps(options.steps);
  request.set_output_path(options.output_path);
  const auto ranks = ParseRanks(options.ranks);
  if (!ranks.ok()) return UsageError(ranks.status().message());
  request.mutable_ranks()->Add(ranks->begin(), ranks->end());
  const auto kinds = ParseKinds(options.kind);
  if (!kinds.ok()) return UsageError("--kind: " + kinds.status().message());
  if (kinds->size() > 1) return UsageError("--kind: takes one kind; leave it out for all");
  if (!kinds->empty()) request.set_kind(kinds->front());
  const auto statistics = Choose(options.stats);
  if (!statistics.ok()) return UsageError(statistics.status().message());

  grpc::ClientContext context;
  session.Prepare(context);
  v1::GetSeriesResponse response;
  const grpc::Status status = session.query().GetSeries(&context, request, &response);
  if (!status.ok())
    return session.Fail("series " + Printable(options.run) + " " + Printable(options.activation), status);
  if (session.json()) {
    session.PrintJson(response);
    return kExitSame;
  }
  if (session.csv()) {
    session.PrintCsv(MakeTable(response, *statistics, true));
    return kExitSame;
  }
  Page page;
  page.AddTable(MakeTable(response, *statistics, false));
  if (options.stats.size() == 1) {
    std::string plot = MakePlot(response, *statistics->front());
    if (!plot.empty()) {
      page.AddHeading(fmt::format("{} of {}", statistics->front()->name, Printable(options.activation)));
      page.AddPlot(std::move(plot));
    }
  }
  session.Print(page);
  return kExitSame;
}

}  // namespace statcollect::client
