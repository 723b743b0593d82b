// What to say of a selection that found nothing, where the run has records outside it.
#ifndef STATCOLLECT_CLIENT_COMMANDS_ELSEWHERE_H_
#define STATCOLLECT_CLIENT_COMMANDS_ELSEWHERE_H_

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "common/names.h"
#include "common/text.h"

namespace statcollect::client {

// "No scalars in base for this selection: it has some at steps 0-5, of ranks 0, 1." Without any:
// "No scalars in base: " and `how`, which says how to record them. `ask` sends the request again,
// without what selects.
template <typename Request, typename Ask>
std::string NothingSelected(const std::string& what, Request request, const Ask& ask,
                            const std::string& how) {
  const std::string none = fmt::format("No {} in {}", what, Printable(request.run()));
  bool selects = !request.steps().empty() || !request.ranks().empty();
  if constexpr (requires { request.clear_kinds(); }) {
    selects = selects || !request.kinds().empty();
    request.clear_kinds();
  }
  if (!selects) return none + ": " + how;
  request.clear_steps();
  request.clear_ranks();
  const auto all = ask(request);
  if (!all.ok()) return none + " for this selection.";  // such as more than an answer may have
  if (all->records().empty()) return none + ": " + how;
  std::set<std::uint64_t> steps;
  std::set<std::uint32_t> ranks;
  for (const auto& row : all->records()) {
    steps.insert(row.step());
    ranks.insert(row.rank());
  }
  return fmt::format("{} for this selection: it has some at {}, of {}.", none, StepsNamed(steps),
                     RanksNamed("rank", std::vector<std::uint32_t>(ranks.begin(), ranks.end())));
}

}  // namespace statcollect::client

#endif  // STATCOLLECT_CLIENT_COMMANDS_ELSEWHERE_H_
