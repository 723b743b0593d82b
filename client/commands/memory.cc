#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <optional>
#include <string_view>

#include <fmt/format.h>

#include "client/commands/commands.h"
#include "client/commands/elsewhere.h"
#include "client/commands/selection.h"
#include "client/render/flatten.h"
#include "client/render/plot.h"
#include "common/names.h"

namespace statcollect::client {
namespace {

using google::protobuf::FieldDescriptor;

constexpr double kMebibyte = 1 << 20;
constexpr std::size_t kRanksPlotted = 4;

const FieldDescriptor& FieldOf(std::string_view quantity) {
  return *v1::MemoryRow::descriptor()->FindFieldByName(std::string(quantity));
}

std::optional<std::int64_t> Bytes(const v1::MemoryRow& row, const FieldDescriptor& field) {
  const auto& reflection = *row.GetReflection();
  if (!reflection.HasField(row, &field)) return std::nullopt;
  return reflection.GetInt64(row, &field);
}

// The quantity shown as "in use": allocated memory if known, otherwise resident memory.
const FieldDescriptor& InUse(const v1::MemoryRow& row) {
  return FieldOf(row.has_allocated() ? "allocated" : "host_rss");
}

std::string Mebibytes(const std::optional<std::int64_t>& bytes) {
  if (!bytes) return "-";
  const double value = static_cast<double>(*bytes) / kMebibyte;
  return std::abs(value) >= 10 || *bytes == 0 ? fmt::format("{:.1f}", value)
                                              : fmt::format("{:.2g}", value);
}

std::string Where(const v1::MemoryRow& row) {
  return fmt::format("rank {}, step {}, {}", row.rank(), row.step(), row.phase());
}

std::string PeakSentence(const v1::ListMemoryResponse& response) {
  const v1::MemoryRow* peak = nullptr;
  const auto in_use = [](const v1::MemoryRow& row) { return Bytes(row, InUse(row)).value_or(-1); };
  for (const v1::MemoryRow& row : response.records()) {
    if (peak == nullptr || in_use(row) > in_use(*peak)) peak = &row;
  }
  const FieldDescriptor& field = InUse(*peak);
  return fmt::format("Peak of all phases: {} MiB {} on {} ({}).", Mebibytes(Bytes(*peak, field)),
                     field.name() == "host_rss" ? "resident" : "allocated",
                     Printable(peak->device()), Where(*peak));
}

// The most of each step, a line a rank.
std::string PlotOf(const v1::ListMemoryResponse& response) {
  std::map<std::uint32_t, std::map<std::uint64_t, std::int64_t>> most;
  for (const v1::MemoryRow& row : response.records()) {
    std::int64_t& step = most[row.rank()][row.step()];
    step = std::max(step, Bytes(row, InUse(row)).value_or(0));
  }
  std::vector<PlotLine> lines;
  for (const auto& [rank, steps] : most) {
    if (lines.size() == kRanksPlotted) break;
    PlotLine line{fmt::format("rank {} (MiB in use, most of the step)", rank), {}};
    for (const auto& [step, bytes] : steps)
      line.points.emplace_back(static_cast<double>(step), static_cast<double>(bytes) / kMebibyte);
    lines.push_back(std::move(line));
  }
  return Plot(lines);
}

// Columns that no row fills are left out.
Table PhaseTable(const std::vector<const v1::MemoryRow*>& rows) {
  std::vector<Column> columns = {{"rank", Align::kRight, false, Use::kIfItVaries},
                                 {"step", Align::kRight},
                                 {"mb", Align::kRight, false, Use::kIfItVaries},
                                 {"phase"},
                                 {"device", Align::kLeft, false, Use::kIfItVaries}};
  std::vector<const FieldDescriptor*> shown;
  for (int i = 0; i < v1::MemoryRow::descriptor()->field_count(); ++i) {
    const FieldDescriptor* field = v1::MemoryRow::descriptor()->field(i);
    const auto fills = [&](const v1::MemoryRow* row) { return Bytes(*row, *field).has_value(); };
    if (field->cpp_type() != FieldDescriptor::CPPTYPE_INT64 ||
        std::none_of(rows.begin(), rows.end(), fills))
      continue;
    shown.push_back(field);
    std::string title = field->name();
    std::replace(title.begin(), title.end(), '_', ' ');
    columns.push_back({std::move(title), Align::kRight, false, Use::kIfItFits});
  }
  Table table(std::move(columns));
  for (const v1::MemoryRow* row : rows) {
    std::vector<std::string> cells = {std::to_string(row->rank()), std::to_string(row->step()),
                                      std::to_string(row->micro_batch()), row->phase(),
                                      row->device()};
    for (const FieldDescriptor* field : shown) cells.push_back(Mebibytes(Bytes(*row, *field)));
    table.AddRow(std::move(cells));
  }
  return table;
}

// "48 of 1,200 rows; ..." below a table that was cut.
void AddMore(std::size_t shown, std::size_t total, const std::string& narrower, Page& page) {
  if (total > shown)
    page.AddSentence(fmt::format("{} of {} rows: --all shows all, {}", FormatCount(shown),
                                 FormatCount(total), narrower));
}

// If no steps were selected and all of them do not fit the table, shows only the last one.
Page PhasePage(const v1::ListMemoryResponse& response, const MemoryOptions& options) {
  Page page;
  page.AddSentence(PeakSentence(response));
  if (const std::string plot = PlotOf(response); !plot.empty()) page.AddPlot(plot);
  std::vector<const v1::MemoryRow*> rows;
  std::uint64_t last = 0;
  for (const v1::MemoryRow& row : response.records())
    last = std::max<std::uint64_t>(last, row.step());
  const std::size_t total = static_cast<std::size_t>(response.records_size());
  const std::size_t most = options.all ? total : options.top;
  const bool every_step = !options.steps.empty() || total <= most;
  for (const v1::MemoryRow& row : response.records()) {
    if (rows.size() < most && (every_step || row.step() == last)) rows.push_back(&row);
  }
  page.AddHeading(every_step ? "Phases, in MiB"
                             : fmt::format("Phases of step {}, the last one, in MiB", last));
  page.AddTable(PhaseTable(rows));
  AddMore(rows.size(), total, "--step and --rank select; --format csv is for programs.", page);
  return page;
}

struct ModuleTally {
  std::int64_t added = 0, raised = 0;  // the most of any step
  std::uint64_t step = 0;              // in which it raised the peak most
};

// The modules that raised the peak, largest first.
Page ModulePage(const v1::ListMemoryResponse& response, const MemoryOptions& options) {
  std::map<std::pair<std::uint32_t, std::string>, ModuleTally> tallies;
  for (const v1::MemoryRow& row : response.records()) {
    ModuleTally& tally = tallies[{row.rank(), row.module()}];
    tally.added = std::max<std::int64_t>(tally.added, row.allocated_delta());
    if (row.peak_delta() > tally.raised) tally.raised = row.peak_delta(), tally.step = row.step();
  }
  std::vector<std::pair<std::pair<std::uint32_t, std::string>, ModuleTally>> sorted(tallies.begin(),
                                                                                    tallies.end());
  std::stable_sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) {
    return std::tie(a.second.raised, a.second.added) > std::tie(b.second.raised, b.second.added);
  });
  const std::size_t total = sorted.size();
  if (!options.all && total > options.top) sorted.resize(options.top);
  Table table({{"rank", Align::kRight, false, Use::kIfItVaries},
               {"module", Align::kLeft, true},
               {"raised the peak by", Align::kRight},
               {"at step", Align::kRight},
               {"added in forward", Align::kRight}});
  for (const auto& [place, tally] : sorted) {
    table.AddRow({std::to_string(place.first), place.second, Mebibytes(tally.raised),
                  tally.raised > 0 ? std::to_string(tally.step) : "-", Mebibytes(tally.added)});
  }
  Page page;
  page.AddHeading("Memory of each module's forward pass, maximum over all steps, in MiB");
  page.AddTable(std::move(table));
  AddMore(sorted.size(), total, "--rank chooses a rank.", page);
  return page;
}

// The line of ONNX Runtime's memory observer: whole MiB; what is not known is left out.
std::string OrtLine(const v1::MemoryRow& row) {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 11> kParts = {
      {{"allocated", "allocated"},
       {"max allocated", "max_allocated"},
       {"cached", "reserved"},
       {"max cached", "max_reserved"},
       {"inactive", "inactive"},
       {"max inactive", "max_inactive"},
       {"rss", "host_rss"},
       {"max rss", "host_max_rss"},
       {"param", "parameter"},
       {"grad", "gradient"},
       {"buffer", "buffer"}}};
  std::string line =
      fmt::format("rank-{} step {} memory (MiB) | phase: {}", row.rank(), row.step(), row.phase());
  for (const auto& [label, quantity] : kParts) {
    if (row.has_allocated() && quantity.substr(0, 5) == "host_") continue;
    if (const auto bytes = Bytes(row, FieldOf(quantity)))
      line += fmt::format(" | {}: {:.0f}", label, static_cast<double>(*bytes) / kMebibyte);
  }
  return line;
}

}  // namespace

int Memory(Session& session, const MemoryOptions& options) {
  const std::string attempted = "memory " + Printable(options.run);
  v1::ListMemoryRequest request;
  request.set_run(options.run);
  request.set_modules(options.modules);
  if (const Status wrong = Select(options.ranks, options.steps, request); !wrong.ok())
    return session.Fail(attempted, wrong);
  const auto response = session.collector().ListMemory(request);
  if (!response.ok()) return session.Fail(attempted, response.status());
  if (session.options().format == Format::kOrt) {
    for (const v1::MemoryRow& row : response->records()) session.PrintLine(OrtLine(row));
    return kExitSame;
  }
  session.Print(
      *response, [&] { return FlattenRecords(response->records()); },
      [&] {
        if (!response->records().empty())
          return options.modules ? ModulePage(*response, options) : PhasePage(*response, options);
        Page page;
        page.AddSentence(NothingSelected(
            "memory records", request,
            [&](const auto& all) { return session.collector().ListMemory(all); },
            std::string("statagent.watch(model, ") + (options.modules
                                                          ? "memory=\"modules\") records them."
                                                          : "memory=True) records them.")));
        return page;
      });
  return kExitSame;
}

}  // namespace statcollect::client
