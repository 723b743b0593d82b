#include <algorithm>
#include <map>

#include <fmt/format.h>

#include "client/commands/commands.h"
#include "client/commands/elsewhere.h"
#include "client/commands/selection.h"
#include "client/render/flatten.h"
#include "client/render/plot.h"
#include "common/names.h"
#include "common/text.h"

namespace statcollect::client {
namespace {

constexpr int kRowsShown = 60;    // more than that: the last ones
constexpr int kSamplesShown = 8;  // of a batch
constexpr std::size_t kPlotLines = 4;

double Percent(const v1::DensityRow& row) {
  return row.total() == 0
             ? 0
             : 100.0 * static_cast<double>(row.valid()) / static_cast<double>(row.total());
}

std::string Samples(const v1::DensityRow& row, int most) {
  if (row.valid_per_sample().empty()) return "N/A";
  std::string text;
  for (int i = 0; i < row.valid_per_sample_size(); ++i) {
    if (i == most) return "[" + text + fmt::format(", ... {} in all]", row.valid_per_sample_size());
    text += (i > 0 ? ", " : "") + std::to_string(row.valid_per_sample(i));
  }
  return "[" + text + "]";
}

Table RowTable(const v1::ListDensityResponse& response) {
  Table table({{"rank", Align::kRight, false, Use::kIfItVaries},
               {"step", Align::kRight},
               {"mb", Align::kRight, false, Use::kIfItVaries},
               {"type", Align::kLeft, false, Use::kIfItVaries},
               {"input", Align::kLeft, true},
               {"pad index", Align::kRight, false, Use::kIfItVaries},
               {"density", Align::kRight},
               {"valid", Align::kRight},
               {"total", Align::kRight},
               {"valid a sample", Align::kLeft, false, Use::kIfItFits}});
  for (int i = std::max(0, response.records_size() - kRowsShown); i < response.records_size();
       ++i) {
    const v1::DensityRow& row = response.records(i);
    table.AddRow({std::to_string(row.rank()), std::to_string(row.step()),
                  std::to_string(row.micro_batch()), row.type(), row.input(),
                  std::to_string(row.pad_index()), fmt::format("{:.2f} %", Percent(row)),
                  FormatCount(row.valid()), FormatCount(row.total()), Samples(row, kSamplesShown)});
  }
  return table;
}

struct InputTally {
  std::uint64_t valid = 0, total = 0, records = 0;
};

Page RowPage(const v1::ListDensityResponse& response) {
  std::map<std::pair<std::string, std::string>, InputTally> inputs;
  std::map<std::string, PlotLine> lines;
  for (const v1::DensityRow& row : response.records()) {
    InputTally& tally = inputs[{row.input(), row.type()}];
    tally.valid += row.valid();
    tally.total += row.total();
    ++tally.records;
    PlotLine& line = lines[Printable(row.input(), 24) + fmt::format(" (rank {}, %)", row.rank())];
    line.points.emplace_back(static_cast<double>(row.step()), Percent(row));
  }
  Page page;
  for (const auto& [input, tally] : inputs) {
    const double percent = tally.total == 0 ? 0
                                            : 100.0 * static_cast<double>(tally.valid) /
                                                  static_cast<double>(tally.total);
    page.AddSentence(
        fmt::format("{} ({}): {:.1f} % of {} elements are not padding, over {} batches.",
                    Printable(input.first), input.second, percent, FormatCount(tally.total),
                    FormatCount(tally.records)));
  }
  std::vector<PlotLine> plotted;
  for (auto& [label, line] : lines) {
    if (plotted.size() == kPlotLines) break;
    line.label = label;
    plotted.push_back(std::move(line));
  }
  if (const std::string plot = Plot(plotted); !plot.empty()) page.AddPlot(plot);
  page.AddTable(RowTable(response));
  if (response.records_size() > kRowsShown) {
    page.AddSentence(fmt::format(
        "These are the last {} of {} records; --steps selects others, --format csv prints all.",
        kRowsShown, FormatCount(static_cast<std::uint64_t>(response.records_size()))));
  }
  return page;
}

// Why token ids have no density: the run's embeddings do not say which index is padding. Empty if
// some have one, or if there are none.
std::string WithoutPadding(Session& session, const std::string& run,
                           const v1::ListDensityResponse& response) {
  constexpr std::string_view kSection = "module.", kSetting = ".padding_idx";
  const auto is_embed = [](const v1::DensityRow& row) { return row.type() == "embed"; };
  if (std::any_of(response.records().begin(), response.records().end(), is_embed)) return "";
  v1::CompareConfigRequest request;
  request.set_run_a(run);
  const auto config = session.collector().CompareConfig(request);
  if (!config.ok()) return "";
  std::string names;
  for (const v1::ConfigItem& item : config->items()) {
    if (!item.key().starts_with(kSection) || !item.key().ends_with(kSetting)) continue;
    // "null", or of several modules "null x 2; not set x 3", "null (tok); 0 (target)".
    for (const std::string_view part : PartsOf(item.a(), ';')) {
      const std::string_view value = Trimmed(part);
      if (value != "null" && !value.starts_with("null ") && !value.starts_with("not set"))
        return "";
    }
    const std::string_view name =
        std::string_view(item.key())
            .substr(kSection.size(), item.key().size() - kSection.size() - kSetting.size());
    names += (names.empty() ? "" : ", ") + Printable(name, 100);
  }
  if (names.empty()) return "";
  return "Token ids have no density: no padding_idx is set in " + names +
         ". statagent.watch(model, density={\"input_ids\": 0}) says which index of an input is "
         "padding.";
}

// As ONNX Runtime prints it.
void PrintOrt(const Session& session, const v1::ListDensityResponse& response) {
  session.PrintLine(
      fmt::format(">>>Valid token/label density (e.g. valid/total) in passing {} steps:",
                  response.records_size()));
  session.PrintLine(
      fmt::format("\t| {:<10} | {:<10} | {:<15} | {:<10} | {:<10} | {:<15} | {:<15} | {:<15} |",
                  "STEP", "INPUT TYPE", " INPUT NAME", "PAD IDX", "DENSITY", "VALID TOKENS",
                  "TOTAL TOKENS", "VALID TOKENS/BATCH"));
  for (const v1::DensityRow& row : response.records()) {
    std::string type = row.type();
    std::transform(type.begin(), type.end(), type.begin(),
                   [](unsigned char c) { return std::toupper(c); });
    session.PrintLine(fmt::format(
        "\t| {:<10} | {:<10} | {:<15} | {:<10} | {:<9}% | {:<15} | {:<15} | {} |", row.step(), type,
        Printable(row.input()), row.pad_index(), fmt::format("{:.2f}", Percent(row)), row.valid(),
        row.total(), fmt::format("{:<15}", Samples(row, row.valid_per_sample_size() + 1))));
  }
  session.PrintLine("<<<");
}

}  // namespace

int Density(Session& session, const DensityOptions& options) {
  const std::string attempted = "density " + Printable(options.run);
  v1::ListDensityRequest request;
  request.set_run(options.run);
  request.set_input(options.input);
  if (const Status wrong = Select(options.ranks, options.steps, request); !wrong.ok())
    return session.Fail(attempted, wrong);
  const auto response = session.collector().ListDensity(request);
  if (!response.ok()) return session.Fail(attempted, response.status());
  if (session.options().format == Format::kOrt) {
    PrintOrt(session, *response);
    return kExitSame;
  }
  session.Print(
      *response, [&] { return FlattenRecords(response->records()); },
      [&] {
        const std::string why = WithoutPadding(session, options.run, *response);
        if (!response->records().empty()) {
          Page page = RowPage(*response);
          if (!why.empty()) page.AddSentence(why);
          return page;
        }
        Page page;
        page.AddSentence(NothingSelected(
            "density records", request,
            [&](const auto& all) { return session.collector().ListDensity(all); },
            "statagent.watch(model, density=True) or density={\"input_ids\": 0} records them."));
        if (!why.empty()) page.AddSentence(why);
        return page;
      });
  return kExitSame;
}

}  // namespace statcollect::client
