#include "server/query/answers/token_sequences.h"

#include <algorithm>
#include <limits>
#include <string>
#include <tuple>
#include <utility>

#include "common/text.h"
#include "server/query/answers/token_chains.h"
#include "server/query/compare/heat_cell.h"

namespace statcollect::query {
namespace {

template <typename Row>
const Row* FindKey(const std::vector<Row>& rows, std::uint64_t key) {
  const auto found =
      std::lower_bound(rows.begin(), rows.end(), key,
                       [](const Row& row, std::uint64_t wanted) { return row.key < wanted; });
  return found != rows.end() && found->key == key ? &*found : nullptr;
}

std::vector<PlacedToken> TokensOf(const std::vector<ComparedTap>& taps) {
  std::vector<PlacedToken> tokens;
  for (const ComparedTap& tap : taps) {
    const std::size_t known = tokens.size();
    for (const TokenAt& row : tap.a->rows) {
      if (tokens.size() > known && tokens.back().key == row.key) continue;  // of another step
      tokens.push_back({.position = row.position, .key = row.key});
    }
    if (known == 0) continue;  // most taps have the same tokens
    std::sort(tokens.begin(), tokens.end());
    tokens.erase(std::unique(tokens.begin(), tokens.end()), tokens.end());
  }
  return tokens;
}

class Sequences {
 public:
  explicit Sequences(const std::vector<ComparedTap>& taps)
      : taps_(taps), tokens_(ChainTokens(TokensOf(taps))) {
    for (std::size_t i = 0; i < tokens_.size(); ++i)
      places_.push_back({.key = tokens_[i].token.key, .place = i});
    std::sort(places_.begin(), places_.end(),
              [](const Place& x, const Place& y) { return x.key < y.key; });
    CountDiverged();
    FindEnds();
  }

  // The last token of the sequence of a token; absent: there is no such token.
  std::optional<std::size_t> EndOf(std::uint64_t key) const {
    const Place* const found = FindKey(places_, key);
    return found == nullptr ? std::nullopt : std::optional(best_end_[found->place]);
  }
  // Of the sequences that part at this tap, the first of ends().
  std::size_t EndAt(const ComparedTap& tap) const {
    std::vector<std::uint8_t> parts(tokens_.size(), 0);
    for (const TokenCell& cell : tap.cells) {
      const auto end = cell.level < kHeatDivergedMin ? std::nullopt : EndOf(cell.key);
      if (end) parts[*end] = 1;
    }
    const auto found =
        std::find_if(ends_.begin(), ends_.end(), [&](std::size_t end) { return parts[end] != 0; });
    return found == ends_.end() ? ends_.front() : *found;
  }
  // The last tokens of all sequences, those with most rows beyond their limits first.
  const std::vector<std::size_t>& ends() const { return ends_; }

  void Describe(std::size_t end, v1::TokenSequence& to) const {
    to.set_key(tokens_[end].token.key);
    to.set_first_position(tokens_[end].token.position - static_cast<std::uint32_t>(length_[end]) +
                          1);
    to.set_last_position(tokens_[end].token.position);
    to.set_diverged(diverged_[end]);
  }

  void Show(std::size_t end, v1::GetTokensResponse& out) const {
    std::vector<std::size_t> tokens;
    for (std::optional<std::size_t> at = end; at; at = tokens_[*at].before) tokens.push_back(*at);
    std::reverse(tokens.begin(), tokens.end());
    const std::size_t most =
        std::min(kTokenPositionsMax, kTokenCellsMax / std::max<std::size_t>(1, taps_.size()));
    if (tokens.size() > most) {
      out.add_notes("of the " + std::to_string(tokens.size()) +
                    " tokens of the sequence, the first " + std::to_string(most) + " are shown");
      tokens.resize(most);
    }
    v1::TokenCells& shown = *out.mutable_sequence();
    Describe(end, *shown.mutable_of());
    for (const std::size_t token : tokens)
      shown.add_ids(tokens_[token].id ? static_cast<std::int32_t>(*tokens_[token].id) : -1);
    for (std::size_t tap = 0; tap < taps_.size(); ++tap) ShowTap(tap, tokens, shown);
  }

 private:
  struct Place {
    std::uint64_t key = 0;
    std::size_t place = 0;
  };

  // Rows beyond their limits: of each token, then of it and all before it.
  void CountDiverged() {
    diverged_.assign(tokens_.size(), 0);
    length_.assign(tokens_.size(), 1);
    for (const ComparedTap& tap : taps_) {
      for (const TokenCell& cell : tap.cells) {
        const Place* const found =
            cell.level < kHeatDivergedMin ? nullptr : FindKey(places_, cell.key);
        if (found != nullptr) ++diverged_[found->place];
      }
    }
    for (std::size_t i = 0; i < tokens_.size(); ++i) {
      if (!tokens_[i].before) continue;
      diverged_[i] += diverged_[*tokens_[i].before];
      length_[i] += length_[*tokens_[i].before];
    }
  }

  void FindEnds() {
    const auto rank = [&](std::size_t end) {
      return std::tuple(~diverged_[end], ~length_[end], end);
    };
    std::vector<std::uint8_t> goes_on(tokens_.size(), 0);
    best_end_.resize(tokens_.size());
    for (std::size_t i = tokens_.size(); i-- > 0;) {  // what follows stands behind
      if (goes_on[i] == 0) {
        best_end_[i] = i;
        ends_.push_back(i);
      }
      if (!tokens_[i].before) continue;
      const std::size_t before = *tokens_[i].before;
      if (goes_on[before] == 0 || rank(best_end_[i]) < rank(best_end_[before]))
        best_end_[before] = best_end_[i];
      goes_on[before] = 1;
    }
    std::sort(ends_.begin(), ends_.end(),
              [&](std::size_t x, std::size_t y) { return rank(x) < rank(y); });
  }

  void ShowTap(std::size_t at, const std::vector<std::size_t>& tokens,
               v1::TokenCells& shown) const {
    constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
    const ComparedTap& tap = taps_[at];
    const bool values = tap.a->columns == 1 && tap.b->columns == 1;
    v1::TokenValues* const to = values ? shown.add_values() : nullptr;
    if (to != nullptr) to->set_tap(static_cast<std::uint32_t>(at));
    for (const std::size_t token : tokens) {
      const std::uint64_t key = tokens_[token].token.key;
      const TokenCell* const cell = FindKey(tap.cells, key);
      const bool in_one = cell == nullptr && (FindKey(tap.a->rows, key) != nullptr ||
                                              FindKey(tap.b->rows, key) != nullptr);
      shown.mutable_cells()->push_back(static_cast<char>(cell != nullptr ? cell->level
                                                         : in_one        ? kHeatMissing
                                                                         : kHeatNoData));
      if (to == nullptr) continue;
      to->add_a(cell == nullptr ? kNone : static_cast<double>(cell->a));
      to->add_b(cell == nullptr ? kNone : static_cast<double>(cell->b));
    }
  }

  const std::vector<ComparedTap>& taps_;
  const std::vector<ChainedToken> tokens_;
  std::vector<Place> places_;                     // by key
  std::vector<std::uint64_t> diverged_, length_;  // up to each token
  std::vector<std::size_t> best_end_, ends_;
};

}  // namespace

Status AddSequences(const std::vector<ComparedTap>& taps, std::optional<std::uint64_t> wanted,
                    v1::GetTokensResponse& out) {
  const Sequences sequences(taps);
  const auto& ends = sequences.ends();
  if (ends.empty()) return Status::Ok();
  std::optional<std::size_t> shown = ends.front();
  if (wanted) {
    shown = sequences.EndOf(*wanted);
    if (!shown)
      return {Code::kNotFound,
              "tokens: run '" + out.run_a() + "' has no token with the key " + HexOf(*wanted) +
                  "; expected one of a sequence that the answer lists; leave it out to see the one "
                  "that parts most"};
  } else if (out.has_first()) {
    shown = sequences.EndAt(taps[out.first()]);
  }
  for (std::size_t i = 0; i < std::min(ends.size(), kTokenSequencesMax); ++i)
    sequences.Describe(ends[i], *out.add_sequences());
  out.set_sequences_total(ends.size());
  sequences.Show(*shown, out);
  return Status::Ok();
}

}  // namespace statcollect::query
