#include "server/query/verdict/choices.h"

#include <algorithm>
#include <cmath>

#include "server/query/compare/distance.h"
#include "server/query/settings/dotted.h"
#include "server/query/verdict/pair_size.h"

namespace statcollect::query {
namespace {

constexpr double kMovedElements = 0.002, kMoves = 2;  // as for elements behind a bend
constexpr double kOtherRow = 2;                       // the square of the difference of unrelated rows

// Whether its first dimensions, one or more, count so many rows.
bool HasRows(const Layout& layout, std::int64_t rows) {
  std::int64_t count = 1;
  for (const std::int64_t size : layout.shape) {
    count *= size;
    if (count >= rows) return count == rows;
  }
  return false;
}

}  // namespace

bool IsChoice(const TensorPair& pair) {
  return pair.a.def->key.kind == Kind::kOutput && !IsFloat(pair.a.layout->dtype) &&
         !IsFloat(pair.b.layout->dtype);
}

double MovedByRounding(const TensorPair& choice, double level) {
  const double moved = Numel(choice) * level, norm = Norm(choice);
  if (!(moved > kMovedElements) || !(norm > 0)) return 0;
  const TensorStats& stats = *choice.a.stats;
  const double largest = std::max(std::abs(stats.min), std::abs(stats.max));
  return kMoves * largest / norm * std::sqrt(std::max(1.0, moved));
}

double DistanceOfNorms(const TensorPair& pair) {
  return std::max(RelativeDifference(pair.a.stats->l2, pair.b.stats->l2),
                  RelativeDifference(pair.a.stats->l1, pair.b.stats->l1));
}

void Choices::Note(const TensorPair& choice) {
  const TensorKey& key = choice.a.def->key;
  const std::string_view around = ParentOf(key.name);
  if (around.empty() || !(choice.distance > 0)) return;
  Moved& moved = moved_[{{key.micro_batch, key.mode}, around}];
  const auto& shape = choice.a.layout->shape;
  moved.rows = shape.empty() ? 1 : shape[0];
  // Integers differ by one at least, so at most so many rows have another choice; each has nothing in common with what
  // was there before.
  const double most = std::pow(Capped(choice.distance) * Norm(choice), 2);
  const double of_rows = std::sqrt(kOtherRow * most / std::max<double>(1, static_cast<double>(moved.rows)));
  moved.distance = std::max({moved.distance, Capped(choice.distance), Capped(of_rows)});
}

Choices::Effect Choices::On(const TensorPair& pair) const {
  const TensorKey& key = pair.a.def->key;
  Effect effect;
  if (moved_.empty()) return effect;
  for (std::string_view at = ParentOf(key.name); !at.empty(); at = ParentOf(at)) {
    const auto found = moved_.find({{key.micro_batch, key.mode}, at});
    if (found == moved_.end()) continue;
    effect.distance = std::max(effect.distance, found->second.distance);
    effect.in_other_rows |= !HasRows(*pair.a.layout, found->second.rows);
  }
  return effect;
}

double Choices::AroundParameter(std::string_view name) const {
  double largest = 0;
  for (const auto& [at, moved] : moved_) {
    const auto& [place, around] = at;
    if (place.second == Mode::kTrain && Encloses(around, name)) largest = std::max(largest, moved.distance);
  }
  return largest;
}

}  // namespace statcollect::query
