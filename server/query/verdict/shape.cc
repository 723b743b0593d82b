#include "server/query/verdict/shape.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "server/query/verdict/constants.h"
#include "server/query/verdict/explain.h"

namespace statcollect::query {
namespace {

bool HasSums(const TensorPair& pair) {
  return pair.a.sketch.size() >= guessed::kSumsForShape &&
         pair.b.sketch.size() == pair.a.sketch.size();
}

// Empty if the sketches do not show it.
std::optional<double> BySmallerSums(const TensorPair& pair) {
  const double norm = std::max(pair.a.stats->l2, pair.b.stats->l2);
  if (!HasSums(pair) || !(norm > 0) || pair.a.stats->numel < guessed::kElementsForShape ||
      !std::isfinite(pair.distance))
    return std::nullopt;
  std::vector<double> squares;
  for (std::size_t i = 0; i < pair.a.sketch.size(); ++i) {
    const double apart = static_cast<double>(pair.a.sketch[i]) - pair.b.sketch[i];
    squares.push_back(apart * apart);
  }
  std::sort(squares.begin(), squares.end());
  if (!(squares.back() > 0)) return std::nullopt;
  const std::size_t kept = squares.size() - squares.size() / 4;
  double smaller = 0;
  for (std::size_t i = 0; i < kept; ++i) smaller += squares[i];
  return std::sqrt(smaller / guessed::kShareOfSmaller) / norm;
}

}  // namespace

bool IsFactor(const TensorPair& pair) {
  if (!HasSums(pair)) return false;
  double product = 0, apart = 0, squares = 0;
  for (std::size_t i = 0; i < pair.a.sketch.size(); ++i) {
    const double a = pair.a.sketch[i], difference = pair.b.sketch[i] - a;
    product += a * difference;
    apart += difference * difference;
    squares += a * a;
  }
  return std::abs(product) > guessed::kAlong * std::sqrt(apart * squares);
}

double WithoutMoved(const TensorPair& pair) {
  const auto without = BySmallerSums(pair);
  return without && *without < guessed::kFewMoved * pair.distance ? *without : pair.distance;
}

bool IsEverywhere(const TensorPair& pair) {
  const auto without = BySmallerSums(pair);
  return without && !(*without < guessed::kFewMoved * pair.distance);
}

}  // namespace statcollect::query
