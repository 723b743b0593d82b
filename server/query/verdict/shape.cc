#include "server/query/verdict/shape.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "server/query/verdict/explain.h"

namespace statcollect::query {
namespace {

constexpr std::size_t kSumsForShape = 16;  // at least
constexpr std::uint64_t kElementsForShape = 256;
constexpr double kAlong = 0.9;            // cosine
constexpr double kShareOfSmaller = 0.28;  // of 16 squared sums of a tensor, that of the twelve smallest ones
constexpr double kFewMoved = 0.1;         // of the distance

bool HasSums(const TensorPair& pair) {
  return pair.a.sketch.size() >= kSumsForShape && pair.b.sketch.size() == pair.a.sketch.size();
}

// Empty if the sketches do not show it.
std::optional<double> BySmallerSums(const TensorPair& pair) {
  const double norm = std::max(pair.a.stats->l2, pair.b.stats->l2);
  if (!HasSums(pair) || !(norm > 0) || pair.a.stats->numel < kElementsForShape ||
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
  return std::sqrt(smaller / kShareOfSmaller) / norm;
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
  return std::abs(product) > kAlong * std::sqrt(apart * squares);
}

double WithoutMoved(const TensorPair& pair) {
  const auto without = BySmallerSums(pair);
  return without && *without < kFewMoved * pair.distance ? *without : pair.distance;
}

bool IsEverywhere(const TensorPair& pair) {
  const auto without = BySmallerSums(pair);
  return without && !(*without < kFewMoved * pair.distance);
}

}  // namespace statcollect::query
