#include "server/query/answers/token_chains.h"

#include <algorithm>
#include <utility>

namespace statcollect::query {
namespace {

// key = mix((id + 1) * kGolden + before), and mix can be undone (agent/stats/rows.h). So
// id = kBack * unmix(key) - 1 - kBack * before, where kBack * kGolden = 1.
constexpr std::uint64_t kBack = 0xf1de83e19937733du;
constexpr std::uint64_t kStart = 0x53544154544f4b45u;  // what is before the first token
constexpr std::uint64_t kIdsEnd = std::uint64_t{1} << 24;

constexpr std::uint64_t Unmix(std::uint64_t key) {
  key ^= key >> 31 ^ key >> 62;
  key *= 0x319642b2d24d8ec3u;
  key ^= key >> 27 ^ key >> 54;
  key *= 0x96de1b173f119089u;
  return key ^ key >> 30 ^ key >> 60;
}

// The id is the difference of what the keys stand for: of the token, and of the one before it.
constexpr std::uint64_t AsToken(std::uint64_t key) { return kBack * Unmix(key) - 1; }
constexpr std::uint64_t AsBefore(std::uint64_t key) { return kBack * key; }

}  // namespace

std::optional<std::uint32_t> IdBetween(std::uint64_t before, std::uint64_t key) {
  const std::uint64_t id = AsToken(key) - AsBefore(before);
  return id < kIdsEnd ? std::optional(static_cast<std::uint32_t>(id)) : std::nullopt;
}

std::vector<ChainedToken> ChainTokens(std::vector<PlacedToken> tokens) {
  std::sort(tokens.begin(), tokens.end());
  tokens.erase(std::unique(tokens.begin(), tokens.end()), tokens.end());
  std::vector<ChainedToken> chained;
  chained.reserve(tokens.size());
  // Those of the position before, by what they stand for: the nearest below a token is its own.
  std::vector<std::pair<std::uint64_t, std::size_t>> before;
  for (std::size_t first = 0; first < tokens.size();) {
    const std::uint32_t position = tokens[first].position;
    const bool next = first > 0 && tokens[first - 1].position + 1 == position;
    if (!next) before.clear();
    std::size_t last = first;
    for (; last < tokens.size() && tokens[last].position == position; ++last) {
      ChainedToken& token = chained.emplace_back();
      token.token = tokens[last];
      if (position == 0) token.id = IdBetween(kStart, tokens[last].key);
      if (before.empty()) continue;
      const std::pair wanted(AsToken(tokens[last].key), tokens.size());
      auto found = std::upper_bound(before.begin(), before.end(), wanted);
      found = found == before.begin() ? before.end() - 1 : found - 1;  // modulo 2^64
      token.id = IdBetween(tokens[found->second].key, tokens[last].key);
      if (token.id) token.before = found->second;
    }
    before.clear();
    for (std::size_t i = first; i < last; ++i) before.emplace_back(AsBefore(tokens[i].key), i);
    std::sort(before.begin(), before.end());
    first = last;
  }
  return chained;
}

}  // namespace statcollect::query
