// Which token follows which, told by their keys alone.
#ifndef STATCOLLECT_SERVER_QUERY_ANSWERS_TOKEN_CHAINS_H_
#define STATCOLLECT_SERVER_QUERY_ANSWERS_TOKEN_CHAINS_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace statcollect::query {

struct PlacedToken {
  std::uint32_t position = 0;
  std::uint64_t key = 0;
  auto operator<=>(const PlacedToken&) const = default;
};

struct ChainedToken {
  PlacedToken token;
  std::optional<std::size_t> before;  // the token before it in the list; absent: not among these
  // Absent: not known, because what is before it is not, or an embedding stands for it.
  std::optional<std::uint32_t> id;
};

// The id with which a token's key follows from the key before it; absent: it does not. An id is
// below 2^24: that two keys fit by chance has a probability of 2^-40.
std::optional<std::uint32_t> IdBetween(std::uint64_t before, std::uint64_t key);

// By position and key; `tokens` in any order, some several times. Tokens that follow several others
// (the prompts that they share) are there once, so the list is a forest. Cost: n log n.
std::vector<ChainedToken> ChainTokens(std::vector<PlacedToken> tokens);

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_ANSWERS_TOKEN_CHAINS_H_
