#include "server/query/compare/fused_pair.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

namespace statcollect::query {
namespace {

using Shape = std::vector<std::int64_t>;

Combined Whole(const Observation& side) {
  return {.def = side.def,
          .layout = *side.layout,
          .stats = *side.stats,
          .sketch = {side.sketch.begin(), side.sketch.end()}};
}

// Whether the first two dimensions, exchanged or not, leave every element at its index.
bool AreInOrder(const Shape& a, const Shape& b) {
  if (a.size() != b.size() || a.size() < 2) return a == b;
  if (!std::equal(a.begin() + 2, a.end(), b.begin() + 2)) return false;
  const bool one = a[0] == 1 || a[1] == 1;
  if (a[0] == b[1] && a[1] == b[0])
    return one;  // exchanged, unless both are equal: then nobody knows
  return a[0] == b[0] && a[1] == b[1];
}

// The rows that `longer` has more, as a number of elements; 0: the shapes differ in something else.
std::uint64_t Padding(const Combined& longer, const Combined& shorter) {
  const Shape &x = longer.layout.shape, &y = shorter.layout.shape;
  if (!longer.layout.Has(Statistic::kShape) || !shorter.layout.Has(Statistic::kShape)) return 0;
  if (x.empty() || x.size() != y.size() || x[0] <= y[0]) return 0;
  return std::equal(x.begin() + 1, x.end(), y.begin() + 1)
             ? longer.stats.numel - shorter.stats.numel
             : 0;
}

// In the last dimension, as in logits.
bool HasMoreColumns(const Combined& longer, const Combined& shorter) {
  const Shape &x = longer.layout.shape, &y = shorter.layout.shape;
  if (x.size() < 2 || x.size() != y.size() || x.back() <= y.back()) return false;
  return std::is_permutation(x.begin(), x.end() - 1, y.begin());
}

// The same dimensions in another order, whatever those of size 1.
bool ArePermuted(Shape a, Shape b) {
  std::erase(a, 1);
  std::erase(b, 1);
  return std::is_permutation(a.begin(), a.end(), b.begin(), b.end());
}

constexpr std::uint32_t kNoStatistics = (std::uint32_t{1} << kStatisticCount) - 1;

void DropAll(Combined& side) {
  side.layout.absent = kNoStatistics;
  side.layout.untrusted = 0;
  side.sketch.clear();
}

void SetAbsent(Combined& side, std::uint32_t statistics) {
  side.layout.absent |= statistics;
  side.layout.untrusted &= ~side.layout.absent;
}

// Takes `padding` zeros out of the statistics. Sketch, sums and norms do not see them.
void RemoveZeros(std::uint64_t padding, const Shape& shape, Combined& side) {
  TensorStats& stats = side.stats;
  const auto count = static_cast<double>(stats.numel - stats.nan - stats.pos_inf - stats.neg_inf);
  const double left = count - static_cast<double>(padding);
  stats.numel -= padding;
  stats.zero -= padding;
  side.layout.shape = shape;
  SetAbsent(side, BitOf(Statistic::kHash));
  if (!stats.has_finite || left <= 0) return;
  const double squares = (stats.std * stats.std + stats.mean * stats.mean) * (count / left);
  stats.mean *= count / left;
  stats.std = std::sqrt(std::max(0.0, squares - stats.mean * stats.mean));
  if (stats.min == 0)
    SetAbsent(side, BitOf(Statistic::kMin));  // the smallest value beside the padding?
  if (stats.max == 0) SetAbsent(side, BitOf(Statistic::kMax));
}

void Unpad(Combined& longer, Combined& shorter) {
  if (HasMoreColumns(longer, shorter)) {
    DropAll(longer);
    DropAll(shorter);
    return;
  }
  const std::uint64_t padding = Padding(longer, shorter);
  if (padding == 0) return;
  const bool counted =
      longer.layout.Trusts(Statistic::kZero) && shorter.layout.Trusts(Statistic::kZero);
  // If they were not all zeros, the vocabulary's own rows would hold as many zeros more.
  if (counted && longer.stats.zero >= shorter.stats.zero + padding && longer.stats.numel > padding)
    return RemoveZeros(padding, shorter.layout.shape, longer);
  DropAll(longer);
  DropAll(shorter);
}

void DropPlaces(Combined& side) {
  SetAbsent(side, BitOf(Statistic::kHash));
  side.sketch.clear();
  side.layout.placement.reset();
}

// One of equal numbers, such as the optimizer's count of steps for each of the parts: the one that
// `other` is not, if they differ.
const Observation* OfNumbers(std::span<const Observation> parts, const Observation& other) {
  if (other.stats->numel != 1) return nullptr;
  const Observation* number = &parts.front();
  for (const Observation& part : parts) {
    if (part.stats->numel != 1) return nullptr;
    if (part.stats->mean != other.stats->mean) number = &part;
  }
  return number;
}

FusedPair FuseParts(std::span<const Observation> a, std::span<const Observation> b) {
  if (b.size() == 1) {
    if (const Observation* const number = OfNumbers(a, b.front()))
      return {Whole(*number), Whole(b.front())};
  }
  if (a.size() == 1) {
    if (const Observation* const number = OfNumbers(b, a.front()))
      return {Whole(a.front()), Whole(*number)};
  }
  FusedPair pair{Combine(a), Combine(b)};
  const Observation& single = b.size() == 1 ? b.front() : a.front();
  const bool known = pair.a.layout.Has(Statistic::kShape) && pair.b.layout.Has(Statistic::kShape);
  if (known && (a.size() == 1 || b.size() == 1) && pair.a.stats.numel == pair.b.stats.numel)
    pair.a.layout.shape = pair.b.layout.shape = single.layout->shape;
  return pair;
}

}  // namespace

FusedPair Fuse(const NameRelation& relation, std::span<const Observation> a,
               std::span<const Observation> b) {
  if (a.size() > 1 || b.size() > 1) return FuseParts(a, b);
  FusedPair pair{Whole(a.front()), Whole(b.front())};
  if (relation.padded) {
    Unpad(pair.a, pair.b);
    Unpad(pair.b, pair.a);
  }
  const bool in_order =
      !relation.any_order &&
      (!relation.sequence_first || AreInOrder(pair.a.layout.shape, pair.b.layout.shape));
  if (!in_order) {
    DropPlaces(pair.a);
    DropPlaces(pair.b);
  }
  if ((relation.any_order || relation.sequence_first) &&
      ArePermuted(pair.a.layout.shape, pair.b.layout.shape))
    pair.b.layout.shape = pair.a.layout.shape;
  return pair;
}

std::optional<FusedPair> FuseGroup(const AlignedGroup& group, std::span<const Observation> a,
                                   std::span<const Observation> b) {
  if (a.size() < group.a.size() || b.size() < group.b.size()) return std::nullopt;
  return Fuse(group.relation, a, b);
}

}  // namespace statcollect::query
