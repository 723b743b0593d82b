#include "server/query/answers/token_table.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <limits>
#include <tuple>
#include <utility>

#include "server/query/answers/each_record.h"

namespace statcollect::query {
namespace {

constexpr double kInfinite = std::numeric_limits<double>::infinity();

double NormOf(const std::array<float, kRowSketch>& sums) {
  double squares = 0;
  for (const float sum : sums) squares += static_cast<double>(sum) * static_cast<double>(sum);
  return std::sqrt(squares);
}

// The rows of one token in one step: [first, last), sorted by first column. Writes whole ones to
// `to`, which is not behind `first`.
using Rows = std::vector<TokenAt>::iterator;
Rows JoinParts(Rows first, Rows last, std::uint32_t columns, Rows to, std::uint64_t& incomplete) {
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
void Settle(TokenTap& tap) {
  const auto order = [](const TokenAt& x, const TokenAt& y) {
    return std::tie(x.key, x.step, x.first_column) < std::tie(y.key, y.step, y.first_column);
  };
  std::stable_sort(tap.rows.begin(), tap.rows.end(), order);
  for (const TokenAt& row : tap.rows)
    tap.columns = std::max(tap.columns, row.first_column + row.columns);
  Rows kept = tap.rows.begin();
  for (Rows first = tap.rows.begin(); first != tap.rows.end();) {
    const auto last = std::find_if(first, tap.rows.end(), [&](const TokenAt& row) {
      return row.key != first->key || row.step != first->step;
    });
    const Rows whole_end = JoinParts(first, last, tap.columns, kept, tap.incomplete);
    for (Rows again = kept; again != whole_end; ++again) {
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

struct Wanted {
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
    return std::isfinite(apart) ? apart : kInfinite;
  }
  if (std::isnan(a.l2) != std::isnan(b.l2)) return kInfinite;
  std::array<float, kRowSketch> difference;
  for (std::size_t i = 0; i < kRowSketch; ++i) difference[i] = a.sketch[i] - b.sketch[i];
  const bool norms = std::isfinite(a.l2) && std::isfinite(b.l2);
  const double l2_a = norms ? static_cast<double>(a.l2) : NormOf(a.sketch);
  const double l2_b = norms ? static_cast<double>(b.l2) : NormOf(b.sketch);
  const double apart = std::max(NormOf(difference), std::abs(l2_a - l2_b));
  if (apart == 0) return 0;
  const double relative = apart / std::max(l2_a, l2_b);
  return std::isfinite(relative) ? relative : kInfinite;
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
                        .stats = row.stats});
  }
}

Result<TokenTable> TokenTable::Read(Store& store, const std::string& run,
                                    const std::string& steps) {
  TokenTable table(run);
  std::size_t rows = 0;
  const auto take = [&](std::uint32_t rank, const TokenRecord& record) -> Status {
    rows += record.rows.size();
    if (rows > kTokenRowsOfRunMax) {
      return {Code::kResourceExhausted,
              "tokens of run '" + run + "': found more than " + std::to_string(kTokenRowsOfRunMax) +
                  " rows; expected no more at once; narrow the question with --steps"};
    }
    table.Add(rank, record);
    return Status::Ok();
  };
  STATCOLLECT_RETURN_IF_ERROR(
      ForEachRecord<TokenRecord>(store, Wanted{.run = run, .ranks = {}, .steps = steps}, take));
  for (TokenTap& tap : table.taps_) Settle(tap);
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

}  // namespace statcollect::query
