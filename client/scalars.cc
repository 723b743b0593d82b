#include <map>
#include <set>
#include <tuple>

#include <fmt/format.h>
#include <grpcpp/client_context.h>
#include <grpcpp/support/status.h>

#include "client/commands.h"
#include "common/names.h"

namespace statcollect::client {
namespace {

constexpr std::size_t kColumnsMax = 8;

Table LongTable(const v1::ListScalarsResponse& response, bool csv) {
  Table table({{"rank", Align::kRight},
               {"step", Align::kRight},
               {"micro_batch", Align::kRight},
               {"name"},
               {"value", Align::kRight}});
  for (const v1::ScalarRow& row : response.records()) {
    table.AddRow({std::to_string(row.rank()), std::to_string(row.step()), std::to_string(row.micro_batch()),
                  row.name(), csv ? fmt::format("{}", row.value()) : FormatNumber(row.value())});
  }
  return table;
}

// A line a step, a column a name and rank.
Table WideTable(const v1::ListScalarsResponse& response,
                const std::set<std::pair<std::string, std::uint32_t>>& series) {
  std::vector<Column> columns = {{"step", Align::kRight}};
  for (const auto& [name, rank] : series)
    columns.push_back({fmt::format("{} rank {}", Printable(name), rank), Align::kRight});
  std::map<std::uint64_t, std::map<std::pair<std::string, std::uint32_t>, double>> steps;
  for (const v1::ScalarRow& row : response.records())
    steps[row.step()][{row.name(), row.rank()}] = row.value();
  Table table(std::move(columns));
  for (const auto& [step, values] : steps) {
    std::vector<std::string> cells = {std::to_string(step)};
    for (const auto& key : series) cells.push_back(values.contains(key) ? FormatNumber(values.at(key)) : "-");
    table.AddRow(std::move(cells));
  }
  return table;
}

}  // namespace

int Scalars(Session& session, const ScalarsOptions& options) {
  v1::ListScalarsRequest request;
  request.set_run(options.run);
  request.set_name(options.name);
  request.set_steps(options.steps);
  const auto ranks = ParseRanks(options.ranks);
  if (!ranks.ok()) return UsageError(ranks.status().message());
  request.mutable_ranks()->Add(ranks->begin(), ranks->end());

  grpc::ClientContext context;
  session.Prepare(context);
  v1::ListScalarsResponse response;
  const grpc::Status status = session.query().ListScalars(&context, request, &response);
  if (!status.ok()) return session.Fail("scalars " + Printable(options.run), status);
  if (session.json()) {
    session.PrintJson(response);
    return kExitSame;
  }
  std::set<std::pair<std::string, std::uint32_t>> series;
  std::set<std::tuple<std::string, std::uint32_t, std::uint64_t>> cells;
  bool unique = true;  // one value a name, rank and step: no micro-batches
  for (const v1::ScalarRow& row : response.records()) {
    series.insert({row.name(), row.rank()});
    unique = cells.insert({row.name(), row.rank(), row.step()}).second && unique;
  }
  const bool wide = !session.csv() && unique && series.size() <= kColumnsMax;
  session.PrintTable(wide ? WideTable(response, series) : LongTable(response, session.csv()));
  return kExitSame;
}

}  // namespace statcollect::client
