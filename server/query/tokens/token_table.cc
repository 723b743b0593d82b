#include "server/query/tokens/token_table.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <limits>
#include <tuple>
#include <utility>

#include "server/query/each_record.h"

namespace statcollect::query {
namespace {

constexpr double kFarthest = std::numeric_limits<double>::infinity();

double SumsNorm(const std::array<float, kRowSketch>& sums) {
  double squares = 0;
  for (const float sum : sums) squares += static_cast<double>(sum) * static_cast<double>(sum);
  return std::sqrt(squares);
}

// The rows of one token in one step: [first, last), sorted by first column. Writes whole ones to
// `to`, which is not behind `first`.
using TokenRowAt = std::vector<TokenAt>::iterator;
TokenRowAt JoinParts(TokenRowAt first, TokenRowAt last, std::uint32_t columns, TokenRowAt to,
                     std::uint64_t& incomplete) {
  std::optional<TokenAt> joined;
  bool has_parts = false;
  for (; first != last; ++first) {
    if (first->columns == columns) {
      *to++ = *first;
      continue;
    }
    has_parts = true;
    const std::uint32_t end = joined ? joined->columns : 0;
    if (first->first_column != end) continue;  // another rank's copy, or a gap
    if (!joined) {
      joined = *first;
      continue;
    }
    joined->columns += first->columns;
    joined->stats.hash += first->stats.hash;
    joined->stats.l2 = std::hypot(joined->stats.l2, first->stats.l2);
    for (std::size_t i = 0; i < kRowSketch; ++i) joined->stats.sketch[i] += first->stats.sketch[i];
  }
  if (!has_parts) return to;
  if (joined && joined->columns == columns) {
    *to++ = *joined;
  } else {
    ++incomplete;
  }
  return to;
}

// Sorts the rows, joins parts and leaves each token once in a step.
void SettleRows(TokenTap& tap) {
  const auto order = [](const TokenAt& x, const TokenAt& y) {
    return std::tie(x.key, x.step, x.first_column) < std::tie(y.key, y.step, y.first_column);
  };
  std::stable_sort(tap.rows.begin(), tap.rows.end(), order);
  for (const TokenAt& row : tap.rows)
    tap.columns = std::max(tap.columns, row.first_column + row.columns);
  TokenRowAt kept = tap.rows.begin();
  for (TokenRowAt first = tap.rows.begin(); first != tap.rows.end();) {
    const auto last = std::find_if(first, tap.rows.end(), [&](const TokenAt& row) {
      return row.key != first->key || row.step != first->step;
    });
    const TokenRowAt whole_end = JoinParts(first, last, tap.columns, kept, tap.incomplete);
    for (TokenRowAt again = kept; again != whole_end; ++again) {
      if (again == kept) continue;
      ++tap.repeated;
      if (again->stats.hash == kept->stats.hash) continue;
      ++tap.unequal;
      tap.apart = std::max(tap.apart, TokenDistance(kept->stats, again->stats, tap.columns));
    }
    if (whole_end != kept) ++kept;
    first = last;
  }
  tap.rows.erase(kept, tap.rows.end());
}

struct WantedTokens {
  std::string run;
  std::vector<std::uint32_t> ranks;
  std::string steps;
};

}  // namespace

double TokenDistance(const RowStats& a, const RowStats& b, std::uint32_t columns) {
  if (columns == 1) {
    const double x = a.sketch[0], y = b.sketch[0];
    if (x == y || (std::isnan(x) && std::isnan(y))) return 0;
    const double apart = std::abs(x - y) / std::max({1.0, std::abs(x), std::abs(y)});
    return std::isfinite(apart) ? apart : kFarthest;
  }
  if (std::isnan(a.l2) != std::isnan(b.l2)) return kFarthest;
  std::array<float, kRowSketch> difference;
  for (std::size_t i = 0; i < kRowSketch; ++i) difference[i] = a.sketch[i] - b.sketch[i];
  const bool norms = std::isfinite(a.l2) && std::isfinite(b.l2);
  const double l2_a = norms ? static_cast<double>(a.l2) : SumsNorm(a.sketch);
  const double l2_b = norms ? static_cast<double>(b.l2) : SumsNorm(b.sketch);
  const double apart = std::max(SumsNorm(difference), std::abs(l2_a - l2_b));
  if (apart == 0) return 0;
  const double relative = apart / std::max(l2_a, l2_b);
  return std::isfinite(relative) ? relative : kFarthest;
}

namespace {

std::uint16_t ExpertOf(float value) {
  constexpr std::uint16_t kLast = 65535;
  const float number = std::abs(value);
  return number < kLast ? static_cast<std::uint16_t>(number) : kLast;  // NaN: no agent writes it
}

}  // namespace

void TokenTable::AddChoices(std::string_view router, const TokenRecord& record) {
  auto at = std::find_if(routers_.begin(), routers_.end(),
                         [&](const TokenRouter& one) { return one.name == router; });
  if (at == routers_.end()) {
    at = routers_.insert(at, {.name = std::string(router), .choices = {}});
    parts_.emplace_back();
  }
  auto& parts = parts_[static_cast<std::size_t>(at - routers_.begin())];
  for (const TokenRow& row : record.rows) {
    parts.push_back({.key = row.key,
                     .step = record.step,
                     .first_column = record.first_column,
                     .columns = record.columns,
                     .values = row.stats.sketch});
  }
}

void TokenTable::Settle(std::vector<ChoicePart>& parts, TokenRouter& to) {
  std::stable_sort(parts.begin(), parts.end(), [](const ChoicePart& x, const ChoicePart& y) {
    return std::tie(x.key, x.step, x.first_column) < std::tie(y.key, y.step, y.first_column);
  });
  std::uint32_t end = 0;  // columns of the last choice so far
  for (const ChoicePart& part : parts) {
    const bool again = !to.choices.empty() && to.choices.back().key == part.key &&
                       to.choices.back().step == part.step;
    if (again ? part.first_column != end : part.first_column != 0) continue;
    if (!again)
      to.choices.push_back(
          {.key = part.key, .step = part.step, .margin = part.values[0], .experts = {}});
    for (std::uint32_t i = again ? 0 : 1; i < std::min<std::uint32_t>(part.columns, kRowSketch);
         ++i)
      to.choices.back().experts.push_back(ExpertOf(part.values[i]));
    end = part.first_column + part.columns;
  }
  for (TokenChoice& choice : to.choices) std::sort(choice.experts.begin(), choice.experts.end());
  parts = {};
}

void TokenTable::Add(std::uint32_t rank, const TokenRecord& record) {
  const auto [at, is_new] = by_name_.emplace(record.tap, taps_.size());
  if (is_new) taps_.push_back({.name = record.tap, .dtype = record.dtype});
  TokenTap& tap = taps_[at->second];
  for (const TokenRow& row : record.rows) {
    tap.rows.push_back({.key = row.key,
                        .step = record.step,
                        .rank = rank,
                        .position = row.position,
                        .first_column = record.first_column,
                        .columns = record.columns,
                        .dtype = record.dtype,
                        .stats = row.stats});
  }
}

Result<TokenTable> TokenTable::Read(RecordReader& store, const std::string& run,
                                    const std::string& steps, What what) {
  TokenTable table(run);
  std::size_t rows = 0;
  const auto take = [&](std::uint32_t rank, const TokenRecord& record) -> Status {
    const std::string_view tap = record.tap;
    const bool chosen = tap.ends_with(kChosenSuffix);
    if (!chosen && what == What::kRouters) return Status::Ok();
    rows += record.rows.size();
    if (rows > kTokenRowsOfRunMax) {
      return {Code::kResourceExhausted,
              "tokens of run '" + run + "': found more than " + std::to_string(kTokenRowsOfRunMax) +
                  " rows; expected no more at once; narrow the question with --steps"};
    }
    if (chosen) {
      table.AddChoices(tap.substr(0, tap.size() - kChosenSuffix.size()), record);
    } else {
      table.Add(rank, record);
    }
    return Status::Ok();
  };
  STATCOLLECT_RETURN_IF_ERROR(ForEachRecord<TokenRecord>(
      store, WantedTokens{.run = run, .ranks = {}, .steps = steps}, take));
  for (TokenTap& tap : table.taps_) SettleRows(tap);
  for (std::size_t i = 0; i < table.routers_.size(); ++i)
    Settle(table.parts_[i], table.routers_[i]);
  return table;
}

const TokenTap* TokenTable::Find(const std::string& name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &taps_[found->second];
}

std::vector<std::uint64_t> TokenTable::Keys() const {
  std::vector<std::uint64_t> keys;
  for (const TokenTap& tap : taps_) {
    std::vector<std::uint64_t> own, all;
    for (const TokenAt& row : tap.rows) {
      if (own.empty() || own.back() != row.key) own.push_back(row.key);
    }
    std::set_union(keys.begin(), keys.end(), own.begin(), own.end(), std::back_inserter(all));
    keys = std::move(all);
  }
  return keys;
}

std::vector<TokenPair> PairTokens(const TokenTap& a, const TokenTap& b) {
  std::vector<TokenPair> pairs;
  auto at_b = b.rows.begin();
  for (auto at_a = a.rows.begin(); at_a != a.rows.end();) {
    const std::uint64_t key = at_a->key;
    const auto of_other = [key](const TokenAt& row) { return row.key != key; };
    const auto end_a = std::find_if(at_a, a.rows.end(), of_other);
    while (at_b != b.rows.end() && at_b->key < key) ++at_b;
    const auto end_b = std::find_if(at_b, b.rows.end(), of_other);
    if (at_b != end_b) {
      TokenPair pair{.a = &*(end_a - 1), .b = &*(end_b - 1)};
      auto x = end_a, y = end_b;  // behind the rows that are looked at
      while (x != at_a && y != at_b && (x - 1)->step != (y - 1)->step)
        --((x - 1)->step > (y - 1)->step ? x : y);
      if (x != at_a && y != at_b) pair = {.a = &*(x - 1), .b = &*(y - 1)};
      pairs.push_back(pair);
    }
    at_a = end_a;
    at_b = end_b;
  }
  return pairs;
}

std::vector<TokenPair> PairInSteps(const TokenTap& a, const TokenTap& b) {
  std::vector<TokenPair> pairs;
  const auto place = [](const TokenAt& row) { return std::tie(row.key, row.step); };
  auto at_b = b.rows.begin();
  for (const TokenAt& row : a.rows) {
    while (at_b != b.rows.end() && place(*at_b) < place(row)) ++at_b;
    if (at_b != b.rows.end() && place(*at_b) == place(row))
      pairs.push_back({.a = &row, .b = &*at_b});
  }
  return pairs;
}

}  // namespace statcollect::query
