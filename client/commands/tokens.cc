#include <string>
#include <vector>

#include <fmt/format.h>

#include "client/commands/commands.h"
#include "client/commands/map_file.h"
#include "client/commands/selection.h"
#include "client/render/flatten.h"
#include "client/render/table.h"
#include "common/names.h"
#include "proto/json.h"
#include "proto/text/comparable_text.h"
#include "proto/text/tokens_text.h"

namespace statcollect::client {
namespace {

Result<v1::GetTokensRequest> TokensRequestOf(const DiffOptions& options) {
  const bool others = options.tolerance || !options.ranks.empty() || !options.kinds.empty() ||
                      !options.golden.empty() || !options.junit.empty() ||
                      !options.publish.empty() || options.logical || options.by_rank ||
                      options.merge_ranks || options.first_only || options.all;
  if (others) {
    return Status(
        Code::kInvalidArgument,
        "--tokens: found an option that says nothing about tokens; expected only --exact, "
        "--map, --noise and --steps");
  }
  v1::GetTokensRequest request;
  for (const std::string* run : {&options.run_a, &options.run_b})
    STATCOLLECT_RETURN_IF_ERROR(ValidateRunName(*run));
  request.set_run_a(options.run_a);
  request.set_run_b(options.run_b);
  request.set_exact(options.exact);
  request.set_steps(options.steps);
  for (const std::string& run : SplitCommas(options.noise)) {
    STATCOLLECT_RETURN_IF_ERROR(ValidateRunName(run));
    request.add_noise(run);
  }
  if (!options.map.empty()) {
    STATCOLLECT_ASSIGN_OR_RETURN(auto map, ReadMap(options.map));
    request.set_map(std::move(map));
  }
  return request;
}

Table TapTable(const v1::GetTokensResponse& found, std::uint32_t top) {
  Table table({{"tap", Align::kLeft, true},
               {"in " + Printable(found.run_b()), Align::kLeft, true, Use::kIfItVaries},
               {"rows", Align::kRight},
               {"equal", Align::kRight},
               {"beyond", Align::kRight},
               {"distance", Align::kRight},
               {"limit", Align::kRight},
               {"furthest", Align::kRight}});
  const int first = found.has_first() ? static_cast<int>(found.first()) : 0;
  int left = static_cast<int>(top);
  for (int i = 0; i < found.taps_size(); ++i) {
    const v1::TokenTap& tap = found.taps(i);
    // The taps around the first that parts; values, such as log-probabilities, always.
    const bool near = i + 2 >= first && left > 0;
    if (!near && tap.columns() != 1) continue;
    if (near) --left;
    table.AddRow({Printable(tap.tap()), Printable(tap.tap_b()), FormatCount(tap.rows()),
                  FormatCount(tap.equal()), FormatCount(tap.diverged()), ApartText(tap.distance()),
                  found.exact() ? "" : FormatShort(tap.limit()),
                  tap.has_furthest() ? fmt::format("{} and {}", FormatShort(tap.furthest().a()),
                                                   FormatShort(tap.furthest().b()))
                                     : std::string()});
  }
  return table;
}

Page RenderTokens(const v1::GetTokensResponse& found, std::uint32_t top, bool quiet) {
  Page page;
  const bool bad = found.verdict() == v1::VERDICT_DIVERGED;
  const bool refused = found.verdict() == v1::VERDICT_INCOMPARABLE;
  const v1::DiffText text = TokensText(found);
  page.AddSentence(text.sentence(), text.verdict(), bad || refused ? Tone::kBad : Tone::kGood);
  if (quiet) return page;
  std::vector<std::string> items = ComparableLines(found.comparable());
  if (!found.noise().empty()) {
    std::string runs;
    for (const std::string& run : found.noise())
      runs += (runs.empty() ? "" : ", ") + Printable(run);
    items.push_back("rounding: measured by " + runs);
  } else if (!found.exact() && !refused) {
    items.push_back("rounding: not measured; estimated from dtype and growth (statctl twins " +
                    Printable(found.run_a()) + " measures it)");
  }
  for (const std::string& note : found.notes()) items.push_back(Printable(note, 1000));
  page.AddItems(std::move(items));
  if (found.taps_size() > 0) page.AddTable(TapTable(found, top));
  return page;
}

}  // namespace

int CompareTokens(Session& session, const DiffOptions& options) {
  const std::string attempted =
      "diff " + Printable(options.run_a) + " " + Printable(options.run_b) + " --tokens";
  const auto request = TokensRequestOf(options);
  if (!request.ok()) return session.Fail(attempted, request.status());
  const auto found = session.collector().GetTokens(*request);
  if (!found.ok()) return session.Fail(attempted, found.status());
  session.Print(
      *found, [&] { return FlattenRecords(found->taps()); },
      [&] { return RenderTokens(*found, options.top, session.options().quiet); });
  return ExitCodeOf(found->verdict());
}

}  // namespace statcollect::client
