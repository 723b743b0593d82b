// The first tap at which the same tokens part in two programs: a trainer and an engine.
#ifndef STATCOLLECT_SERVER_QUERY_ANSWERS_TOKENS_H_
#define STATCOLLECT_SERVER_QUERY_ANSWERS_TOKENS_H_

#include <cstdint>
#include <optional>

#include "server/query/answers/leaf.h"

namespace statcollect::query {

struct TokensRequest {
  std::string run_a, run_b;
  std::string map;                             // of A's taps to B's (NameMap); empty: none
  std::string steps;                           // StepSet; empty: all
  bool exact = false;                          // any other bit counts
  std::vector<std::string> noise;              // repeats of A
  bool cells = false;                          // also the rows of one sequence
  std::optional<std::uint64_t> sequence = {};  // the key of a token of it; absent: where they part
};

// Adds: a map, steps or a key that cannot be parsed.
Result<TokensRequest> FromWire(const v1::GetTokensRequest& request);

// Pairs rows by key at each tap, and walks the taps in A's order. Cost: reads the token records of
// both runs, and of the repeats and twins of both; about 90 bytes of memory a row, with
// `cells` 150. kNotFound: no such run or sequence. Runs without tokens or taps in common are an
// answer, VERDICT_INCOMPARABLE.
Status GetTokens(const Context& context, const TokensRequest& request, v1::GetTokensResponse& out);

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_ANSWERS_TOKENS_H_
