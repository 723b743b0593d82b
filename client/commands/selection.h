// Which part of a run a question is about: what --rank, --steps and --kinds say.
#ifndef STATCOLLECT_CLIENT_COMMANDS_SELECTION_H_
#define STATCOLLECT_CLIENT_COMMANDS_SELECTION_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/status.h"
#include "statcollect/v1/stats.pb.h"

namespace statcollect::client {

// Parts between commas; none of an empty text. Empty parts stay, for the caller to refuse.
std::vector<std::string> SplitCommas(std::string_view text);

// "0,1,4-7" -> 0 1 4 5 6 7. Empty text: none, which means all. kInvalidArgument names the part that does not
// parse.
Result<std::vector<std::uint32_t>> ParseRanks(const std::string& text);
// "output,grad_output"; empty text: none, which means all. kInvalidArgument names the part and the kinds
// there are.
Result<std::vector<v1::Kind>> ParseKinds(const std::string& text);
// kInvalidArgument unless StepSet understands it, as the collector will.
Status CheckSteps(const std::string& text);

// Puts ranks and steps into a request that has them.
template <typename Request>
Status Select(const std::string& ranks, const std::string& steps, Request& request) {
  STATCOLLECT_RETURN_IF_ERROR(CheckSteps(steps));
  auto parsed = ParseRanks(ranks);
  if (!parsed.ok()) return parsed.status();
  request.mutable_ranks()->Add(parsed->begin(), parsed->end());
  request.set_steps(steps);
  return Status::Ok();
}

}  // namespace statcollect::client

#endif  // STATCOLLECT_CLIENT_COMMANDS_SELECTION_H_
