// The token records of a run, by tap and token.
#ifndef STATCOLLECT_SERVER_QUERY_ANSWERS_TOKEN_TABLE_H_
#define STATCOLLECT_SERVER_QUERY_ANSWERS_TOKEN_TABLE_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/records.h"
#include "common/status.h"
#include "server/store/store.h"

namespace statcollect::query {

inline constexpr std::size_t kTokenRowsOfRunMax = std::size_t{1} << 21;

// What a tap had for a token.
struct TokenAt {
  std::uint64_t key = 0, step = 0;
  std::uint32_t rank = 0, position = 0;
  std::uint32_t first_column = 0, columns = 0;
  RowStats stats;
};

struct TokenTap {
  std::string name;
  DType dtype = DType::kUnspecified;
  std::uint32_t columns = 0;  // of whole rows
  // By key, then step, each once: of several equal tokens in a step the first. Whole rows, put
  // together from the parts of tensor-parallel ranks.
  std::vector<TokenAt> rows;
  std::uint64_t repeated = 0;    // rows left out, because the step has the token already
  std::uint64_t unequal = 0;     // of these, with other bits than the first
  double apart = 0;              // largest distance of these from the first
  std::uint64_t incomplete = 0;  // rows of which parts are missing
};

// How far two rows of a tap lie apart, relative to the larger; of single values, relative to their
// size or 1. Estimated from the sketches (by about a third), unless they say less than the norms.
// Infinite: only one has components that are not finite.
double TokenDistance(const RowStats& a, const RowStats& b, std::uint32_t columns);

class TokenTable {
 public:
  // Each step from the newest attempt that has it. kNotFound: no such run; kResourceExhausted: more
  // than kTokenRowsOfRunMax rows. The table is empty where no tokens were recorded.
  static Result<TokenTable> Read(Store& store, const std::string& run, const std::string& steps);

  const std::string& run() const { return run_; }
  // In the order in which they first appear.
  const std::vector<TokenTap>& taps() const { return taps_; }
  const TokenTap* Find(const std::string& name) const;
  // Of all tokens, ascending.
  std::vector<std::uint64_t> Keys() const;

 private:
  explicit TokenTable(std::string run) : run_(std::move(run)) {}
  void Add(std::uint32_t rank, const TokenRecord& record);

  std::string run_;
  std::vector<TokenTap> taps_;
  std::map<std::string, std::size_t> by_name_;
};

// The rows of the same token in both, A's and B's: of several steps the last that both have, or
// else the last of each.
struct TokenPair {
  const TokenAt *a = nullptr, *b = nullptr;
};
std::vector<TokenPair> PairTokens(const TokenTap& a, const TokenTap& b);

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_ANSWERS_TOKEN_TABLE_H_
