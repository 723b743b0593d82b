// The token records of a run, by tap and token.
#ifndef STATCOLLECT_SERVER_QUERY_TOKENS_TOKEN_TABLE_H_
#define STATCOLLECT_SERVER_QUERY_TOKENS_TOKEN_TABLE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/records.h"
#include "common/status.h"
#include "server/store/record_reader.h"

namespace statcollect::query {

inline constexpr std::size_t kTokenRowsOfRunMax = std::size_t{1} << 21;

// What a tap had for a token.
struct TokenAt {
  std::uint64_t key = 0, step = 0;
  std::uint32_t rank = 0, position = 0;
  std::uint32_t first_column = 0, columns = 0;
  DType dtype = DType::kUnspecified;
  RowStats stats;
};

struct TokenTap {
  std::string name;
  DType dtype = DType::kUnspecified;  // of the first row
  std::uint32_t columns = 0;          // of whole rows
  // By key, then step, each once: of several equal tokens in a step the first. Whole rows, put
  // together from the parts of tensor-parallel ranks.
  std::vector<TokenAt> rows;
  std::uint64_t repeated = 0;    // rows left out, because the step has the token already
  std::uint64_t unequal = 0;     // of these, with other bits than the first
  double apart = 0;              // largest distance of these from the first
  std::uint64_t incomplete = 0;  // rows of which parts are missing
};

// What a router chose for tokens. A tap of this name (agent/python/statagent/_tokens/routers.py)
// has rows of small whole numbers behind a margin, in parts of kRowSketch columns, so that a row's
// sketch is what it has: sum 0 of the first part is the margin, the others are the experts, up to
// their signs.
inline constexpr std::string_view kChosenSuffix = ":chosen";

struct TokenChoice {
  std::uint64_t key = 0, step = 0;
  // How far the least of the chosen experts' logits lies above the largest other one. Negative: the
  // router did not choose by the logits alone.
  float margin = 0;
  std::vector<std::uint16_t> experts;  // ascending
};
struct TokenRouter {
  std::string name;
  std::vector<TokenChoice> choices;  // by key, then step, each once
};

// How far two rows of a tap lie apart, relative to the larger; of single values, relative to their
// size or 1. Estimated from the sketches (by about a third), unless they say less than the norms.
// Infinite: only one has components that are not finite.
double TokenDistance(const RowStats& a, const RowStats& b, std::uint32_t columns);

class TokenTable {
 public:
  // Each step from the newest attempt that has it. kNotFound: no such run; kResourceExhausted: more
  // than kTokenRowsOfRunMax rows. The table is empty where no tokens were recorded.
  enum class What : std::uint8_t { kAll, kRouters };  // the latter: no rows of taps
  static Result<TokenTable> Read(RecordReader& store, const std::string& run,
                                 const std::string& steps, What what = What::kAll);

  const std::string& run() const { return run_; }
  // In the order in which they first appear.
  const std::vector<TokenTap>& taps() const { return taps_; }
  const TokenTap* Find(const std::string& name) const;
  // In the same order.
  const std::vector<TokenRouter>& routers() const { return routers_; }
  // Of all tokens, ascending.
  std::vector<std::uint64_t> Keys() const;

 private:
  explicit TokenTable(std::string run) : run_(std::move(run)) {}
  void Add(std::uint32_t rank, const TokenRecord& record);
  // Rows that hold choices, until all of them are known.
  struct ChoicePart {
    std::uint64_t key = 0, step = 0;
    std::uint32_t first_column = 0, columns = 0;
    std::array<float, kRowSketch> values{};
  };
  void AddChoices(std::string_view router, const TokenRecord& record);
  static void Settle(std::vector<ChoicePart>& parts, TokenRouter& to);

  std::string run_;
  std::vector<TokenRouter> routers_;
  std::vector<std::vector<ChoicePart>> parts_;  // of the routers, while records are read
  std::vector<TokenTap> taps_;
  std::map<std::string, std::size_t> by_name_;
};

// The rows of the same token in both, A's and B's: of several steps the last that both have, or
// else the last of each.
struct TokenPair {
  const TokenAt *a = nullptr, *b = nullptr;
};
std::vector<TokenPair> PairTokens(const TokenTap& a, const TokenTap& b);
// The same of each step that both have: by key, then step.
std::vector<TokenPair> PairInSteps(const TokenTap& a, const TokenTap& b);

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_TOKENS_TOKEN_TABLE_H_
