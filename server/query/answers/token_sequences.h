// The sequences of the tokens that two runs share, and the rows of one of them tap by tap.
#ifndef STATCOLLECT_SERVER_QUERY_ANSWERS_TOKEN_SEQUENCES_H_
#define STATCOLLECT_SERVER_QUERY_ANSWERS_TOKEN_SEQUENCES_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "server/query/answers/leaf.h"
#include "server/query/tokens/token_table.h"

namespace statcollect::query {

inline constexpr std::size_t kTokenSequencesMax = 100;      // listed
inline constexpr std::size_t kTokenCellsMax = 1 << 20;      // of one sequence
inline constexpr std::size_t kTokenPositionsMax = 1 << 14;  // of one sequence

// A pair of rows that was compared.
struct TokenCell {
  std::uint64_t key = 0;
  std::uint8_t level = 0;  // compare/heat_cell.h
  float a = 0, b = 0;      // of a tap with one column: the values
};

// A tap of both runs.
struct ComparedTap {
  const TokenTap *a = nullptr, *b = nullptr;
  std::vector<TokenCell> cells;  // by key
};

// Fills `sequences` and `sequence` of the answer, whose taps are `taps`. `wanted`: the key of a
// token, of whose sequences the one with most rows beyond their limits is shown; absent: of those
// that part at the first tap, or of all if none does. kNotFound: A has no such token. Cost: sorts
// the tokens of A.
Status AddSequences(const std::vector<ComparedTap>& taps, std::optional<std::uint64_t> wanted,
                    v1::GetTokensResponse& out);

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_ANSWERS_TOKEN_SEQUENCES_H_
