#include <map>
#include <set>
#include <tuple>

#include <fmt/format.h>

#include "client/commands.h"
#include "client/flatten.h"
#include "client/selection.h"
#include "common/names.h"

namespace statcollect::client {
namespace {

constexpr std::size_t kColumnsMax = 6;

using Series = std::pair<std::string, std::uint32_t>;  // name, rank
using Line = std::pair<std::uint64_t, std::uint32_t>;  // step, micro-batch

Table LongTable(const v1::ListScalarsResponse& response) {
  Table table({{"name", Align::kLeft, true},
               {"rank", Align::kRight},
               {"step", Align::kRight},
               {"mb", Align::kRight},
               {"value", Align::kRight}});
  for (const v1::ScalarRow& row : response.records()) {
    table.AddRow({row.name(), std::to_string(row.rank()), std::to_string(row.step()),
                  std::to_string(row.micro_batch()), FormatNumber(row.value())});
  }
  return table;
}

// A line a step and micro-batch, a column a name and rank.
Table WideTable(const std::map<Line, std::map<Series, double>>& lines, const std::set<Series>& series,
                bool micro_batches) {
  std::vector<Column> columns = {{"step", Align::kRight}};
  if (micro_batches) columns.push_back({"mb", Align::kRight});
  for (const auto& [name, rank] : series) {
    columns.push_back({fmt::format("{} (rank {})", Printable(name, 24), rank), Align::kRight});
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
    const Series column{row.name(), row.rank()};
    series.insert(column);
    fits = lines[{row.step(), row.micro_batch()}].emplace(column, row.value()).second && fits;
    micro_batches = micro_batches || row.micro_batch() > 0;
  }
  return fits && series.size() <= kColumnsMax ? WideTable(lines, series, micro_batches) : LongTable(response);
}

}  // namespace

int Scalars(Session& session, const ScalarsOptions& options) {
  const std::string attempted = "scalars " + Printable(options.run);
  v1::ListScalarsRequest request;
  request.set_run(options.run);
  request.set_name(options.name);
  if (const Status wrong = Select(options.ranks, options.steps, request); !wrong.ok())
    return session.Fail(attempted, wrong);
  const auto response = session.collector().ListScalars(request);
  if (!response.ok()) return session.Fail(attempted, response.status());
  if (session.options().format == Format::kJson) {
    session.PrintJson(*response);
  } else if (session.options().format == Format::kCsv) {
    session.PrintCsv(FlattenRecords(response->records()));
  } else {
    Page page;
    if (response->records().empty()) {
      page.AddSentence("No scalars in " + Printable(options.run) +
                       " for that: statagent.log_scalar(\"loss\", loss) records one.");
    } else {
      page.AddTable(MakeTable(*response));
    }
    session.PrintPage(page);
  }
  return kExitSame;
}

}  // namespace statcollect::client
