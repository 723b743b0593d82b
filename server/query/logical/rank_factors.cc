#include "server/query/logical/rank_factors.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

namespace statcollect::query {
namespace {

using Sums = std::vector<double>;  // a sketch

constexpr double kResidual = 1e-3;  // of the fit, relative to A
constexpr double kApart = 0.01;     // factors that are closer are the same

double Product(const Sums& x, const Sums& y) {
  return std::inner_product(x.begin(), x.end(), y.begin(), 0.0);
}

// The whole tensor's, if every element's place is known.
std::optional<Sums> WholeSketch(const MergePlan& plan, std::span<const Part> parts) {
  TensorStats stats;
  Sums sketch;
  std::vector<std::uint32_t> differing;
  const bool whole = plan.tiling == Tiling::kWhole && plan.has_sketch;
  if (!whole || !Merge(plan, parts, &stats, &sketch, &differing)) return std::nullopt;
  return sketch;
}

// By Gauss with pivots; nothing if it has no single solution.
std::optional<Sums> Solve(std::vector<Sums> rows) {
  constexpr double kSingular = 1e-12;
  const std::size_t n = rows.size();
  for (std::size_t i = 0; i < n; ++i) {
    const auto best = std::max_element(
        rows.begin() + static_cast<std::ptrdiff_t>(i), rows.end(),
        [i](const Sums& x, const Sums& y) { return std::abs(x[i]) < std::abs(y[i]); });
    std::iter_swap(rows.begin() + static_cast<std::ptrdiff_t>(i), best);
    if (!(std::abs(rows[i][i]) > kSingular)) return std::nullopt;
    for (std::size_t j = 0; j < n; ++j) {
      if (j == i) continue;
      const double times = rows[j][i] / rows[i][i];
      for (std::size_t k = i; k <= n; ++k) rows[j][k] -= times * rows[i][k];
    }
  }
  Sums solution;
  for (std::size_t i = 0; i < n; ++i) solution.push_back(rows[i][n] / rows[i][i]);
  return solution;
}

// `whole` as a combination of the others, each scaled to size 1; nothing if it is none.
std::optional<Sums> Combination(const Sums& whole, const std::vector<Sums>& parts) {
  std::vector<Sums> rows;
  std::vector<double> sizes;
  for (const Sums& part : parts) sizes.push_back(std::sqrt(Product(part, part)));
  const double size = std::sqrt(Product(whole, whole));
  if (!(size > 0) || std::any_of(sizes.begin(), sizes.end(), [](double s) { return !(s > 0); }))
    return std::nullopt;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    Sums& row = rows.emplace_back();
    for (std::size_t j = 0; j < parts.size(); ++j)
      row.push_back(Product(parts[i], parts[j]) / sizes[i] / sizes[j]);
    row.push_back(Product(parts[i], whole) / sizes[i]);
  }
  auto solution = Solve(std::move(rows));
  if (!solution) return std::nullopt;
  Sums rest = whole;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    (*solution)[i] /= sizes[i];
    for (std::size_t k = 0; k < rest.size(); ++k) rest[k] -= (*solution)[i] * parts[i][k];
  }
  const bool fits = std::sqrt(Product(rest, rest)) <= kResidual * size;
  return fits ? solution : std::nullopt;
}

// Each set of parts makes up the whole: the parts that were merged, or one replica of it.
std::vector<std::vector<std::uint32_t>> SetsOf(const MergePlan& plan) {
  std::vector<std::vector<std::uint32_t>> sets = {plan.counted};
  if (plan.counted.size() > 1) return sets;
  for (const auto& replica : plan.replicas) sets.push_back({replica.part});
  return sets;
}

}  // namespace

std::map<std::uint32_t, double> RankFactors(std::span<const Part> a, std::span<const Part> b) {
  using Factors = std::map<std::uint32_t, double>;
  if (a.empty() || b.empty()) return {};
  const MergePlan plan_a = MakePlan(a), plan_b = MakePlan(b);
  const auto whole = WholeSketch(plan_a, a);
  if (!whole || !WholeSketch(plan_b, b) || plan_a.layout.shape != plan_b.layout.shape) return {};
  Factors factors;
  for (const auto& set : SetsOf(plan_b)) {
    std::map<std::uint32_t, Sums> by_rank;
    for (const std::uint32_t i : set) {
      Sums& sums = by_rank[b[i].rank];
      if (b[i].sketch.size() != whole->size()) return {};
      sums.resize(whole->size());
      for (std::size_t k = 0; k < sums.size(); ++k) sums[k] += b[i].sketch[k];
    }
    if (2 * by_rank.size() > whole->size()) return {};
    std::vector<Sums> parts;
    for (const auto& [rank, sums] : by_rank) parts.push_back(sums);
    const auto shares = Combination(*whole, parts);
    if (!shares) return {};
    std::size_t at = 0;
    for (const auto& [rank, sums] : by_rank) factors[rank] = 1 / (*shares)[at++];
  }
  const auto [least, most] =
      std::minmax_element(factors.begin(), factors.end(),
                          [](const auto& x, const auto& y) { return x.second < y.second; });
  const double largest = std::max(std::abs(least->second), std::abs(most->second));
  const bool apart = std::isfinite(largest) && most->second - least->second > kApart * largest;
  return apart ? factors : Factors();
}

}  // namespace statcollect::query
