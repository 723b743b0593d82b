#include <string>
#include <vector>

#include <fmt/format.h>

#include "client/commands/commands.h"
#include "client/commands/map_file.h"
#include "client/render/flatten.h"
#include "client/render/table.h"
#include "common/names.h"
#include "proto/json.h"

namespace statcollect::client {
namespace {

Result<v1::GetWeightsRequest> RequestOf(const WeightsOptions& options) {
  v1::GetWeightsRequest request;
  for (const std::string* run : {&options.run_a, &options.run_b})
    STATCOLLECT_RETURN_IF_ERROR(ValidateRunName(*run));
  request.set_run_a(options.run_a);
  request.set_run_b(options.run_b);
  if (options.step) request.set_step(*options.step);
  if (!options.map.empty()) {
    STATCOLLECT_ASSIGN_OR_RETURN(auto map, ReadMap(options.map));
    request.set_map(std::move(map));
  }
  return request;
}

// The same numbers, as far as can be known.
bool Arrived(const v1::WeightRow& row) {
  return row.state() == v1::WEIGHT_STATE_CAST || row.state() == v1::WEIGHT_STATE_SAME_STATISTICS;
}

std::string What(const v1::WeightRow& row, const std::string& a, const std::string& b) {
  const std::string apart =
      row.has_distance() ? ", distance " + FormatShort(row.distance()) : std::string();
  switch (row.state()) {
    case v1::WEIGHT_STATE_STALE:
      return fmt::format("stale: as in step {} of {}{}", row.equals_step(), a, apart);
    case v1::WEIGHT_STATE_EXCHANGED:
      return "exchanged: has the elements of " + Printable(row.equals_name());
    case v1::WEIGHT_STATE_PERMUTED:
      return "permuted: the same elements in another order";
    case v1::WEIGHT_STATE_CAST:
      return fmt::format("cast: {} to {}, no more than rounding{}", row.dtype_a(), row.dtype_b(),
                         apart);
    case v1::WEIGHT_STATE_SAME_STATISTICS:
      return "several in one: their statistics agree" + apart;
    case v1::WEIGHT_STATE_MISSING_IN_A:
      return "missing in " + a;
    case v1::WEIGHT_STATE_MISSING_IN_B:
      return "missing in " + b;
    default:
      return row.has_distance() ? "differs" + apart : "differs in shape or dtype";
  }
}

Page Render(const v1::GetWeightsResponse& found, bool quiet) {
  const std::string a = Printable(found.run_a()), b = Printable(found.run_b());
  std::uint64_t wrong = 0;
  for (const v1::WeightRow& row : found.records()) wrong += Arrived(row) ? 0 : 1;
  Page page;
  page.AddSentence(
      wrong == 0
          ? fmt::format("at step {}: {} of {} weights of {} are those of {} bit for bit{}",
                        found.step(), FormatCount(found.equal()), FormatCount(found.compared()), b,
                        a, found.records().empty() ? "." : ", the others as far as can be known.")
          : fmt::format("at step {}: {} of {} weights of {} are those of {} bit for bit, {} {} "
                        "not.",
                        found.step(), FormatCount(found.equal()), FormatCount(found.compared()), b,
                        a, FormatCount(wrong), wrong == 1 ? "is" : "are"),
      wrong == 0 ? "ARRIVED" : "NOT ARRIVED", wrong == 0 ? Tone::kGood : Tone::kBad);
  if (quiet) return page;
  if (!found.records().empty()) {
    Table table({{"weight", Align::kLeft, true},
                 {"in " + b, Align::kLeft, true, Use::kIfItVaries},
                 {"rank", Align::kRight, false, Use::kIfItVaries},
                 {"what", Align::kLeft}});
    for (const v1::WeightRow& row : found.records()) {
      const std::string& name = row.name_a().empty() ? row.name_b() : row.name_a();
      const bool renamed = !row.name_b().empty() && row.name_b() != name;
      table.AddRow({Printable(name), renamed ? Printable(row.name_b()) : "",
                    std::to_string(row.rank()), What(row, a, b)});
    }
    page.AddTable(std::move(table));
  }
  std::vector<std::string> notes;
  for (const std::string& note : found.notes()) notes.push_back(Printable(note, 1000));
  if (!notes.empty()) page.AddItems(std::move(notes));
  return page;
}

}  // namespace

int CompareWeights(Session& session, const WeightsOptions& options) {
  const std::string attempted =
      "weights " + Printable(options.run_a) + " " + Printable(options.run_b);
  const auto request = RequestOf(options);
  if (!request.ok()) return session.Fail(attempted, request.status());
  const auto found = session.collector().GetWeights(*request);
  if (!found.ok()) return session.Fail(attempted, found.status());
  session.Print(
      *found, [&] { return FlattenRecords(found->records()); },
      [&] { return Render(*found, session.options().quiet); });
  for (const v1::WeightRow& row : found->records()) {
    if (!Arrived(row)) return kExitDiverged;
  }
  return kExitSame;
}

}  // namespace statcollect::client
