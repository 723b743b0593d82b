// Parses --rank, --step and --kind, which select the part of a run that a query covers.
#ifndef STATCOLLECT_CLIENT_COMMANDS_SELECTION_H_
#define STATCOLLECT_CLIENT_COMMANDS_SELECTION_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/status.h"
#include "statcollect/v1/stats.pb.h"

namespace statcollect::client {

// Splits at commas; an empty text has no parts. Empty parts are kept, for the caller to reject.
std::vector<std::string> SplitCommas(std::string_view text);

// "0,1,4-7" -> 0 1 4 5 6 7. Empty: none, which means all. kInvalidArgument names the invalid part.
Result<std::vector<std::uint32_t>> ParseRanks(const std::string& text);
// "output,grad_output"; empty: none, which means all. kInvalidArgument names the invalid part and
// the valid kinds.
Result<std::vector<v1::Kind>> ParseKinds(const std::string& text);
Result<v1::Kind> ParseOneKind(const std::string& text);  // empty: unspecified
// kInvalidArgument unless StepSet can parse it, as the collector will.
Status CheckSteps(const std::string& text);

// Sets ranks and steps of a request that has both.
template <typename Request>
Status Select(const std::string& ranks, const std::string& steps, Request& request) {
  STATCOLLECT_RETURN_IF_ERROR(CheckSteps(steps));
  auto parsed = ParseRanks(ranks);
  if (!parsed.ok()) return parsed.status();
  request.mutable_ranks()->Add(parsed->begin(), parsed->end());
  request.set_steps(steps);
  return Status::Ok();
}

// Sets the kinds of a request.
template <typename Request>
Status SelectKinds(const std::string& text, Request& request) {
  const auto kinds = ParseKinds(text);
  if (!kinds.ok()) return kinds.status();
  for (const v1::Kind kind : *kinds) request.add_kinds(kind);
  return Status::Ok();
}

}  // namespace statcollect::client

#endif  // STATCOLLECT_CLIENT_COMMANDS_SELECTION_H_
