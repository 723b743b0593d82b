#include "server/query/compare/column_diff.h"

#include <algorithm>
#include <span>

#include "common/names.h"
#include "server/query/compare/distance.h"

namespace statcollect::query {
namespace {

constexpr std::size_t kNumbersOfAPair = 4;

bool Equal(const std::uint64_t* a, const std::uint64_t* b, std::size_t size) {
  return std::equal(a, a + size, b);
}

bool IsOf(std::span<const std::uint64_t> numbers, const NumberColumns& a, const NumberColumns& b) {
  const std::size_t size = a.size;
  return numbers.size() == kNumbersOfAPair * size && Equal(numbers.data(), a.activation, size) &&
         Equal(numbers.data() + size, b.activation, size) &&
         Equal(numbers.data() + 2 * size, a.layout, size) &&
         Equal(numbers.data() + 3 * size, b.layout, size);
}

Observation ObservationAt(const RankCatalogue& catalogue, const NumberColumns& block, std::size_t i,
                          const TensorStats& stats) {
  return {.def = &catalogue.activations[block.activation[i]],
          .layout = &catalogue.layouts[block.layout[i]],
          .stats = &stats,
          .sketch = block.SketchOf(i),
          .order = static_cast<std::uint32_t>(block.order[i])};
}

}  // namespace

bool ColumnDiff::Count(const Alignment& alignment, const NumberColumns& a, const NumberColumns& b,
                       RankStepFindings& at, const Compare& compare) {
  if (a.size != b.size) return false;
  Pairs& pairs = PairsOf(alignment, a, b);
  if (!pairs.pair_off || (pairs.in_passes && !Equal(a.order, b.order, a.size))) return false;
  MeasureColumns(a, b, pairs.components, measured_);
  CountPairs(alignment, a, b, pairs, at, compare);
  return true;
}

ColumnDiff::Pairs& ColumnDiff::PairsOf(const Alignment& alignment, const NumberColumns& a,
                                       const NumberColumns& b) {
  if (alignment_ != &alignment) pairs_.clear();
  alignment_ = &alignment;
  Pairs& pairs = pairs_[a.activation[0]];
  if (!IsOf(pairs.numbers, a, b)) LookUp(alignment, a, b, pairs);
  return pairs;
}

void ColumnDiff::LookUp(const Alignment& alignment, const NumberColumns& a, const NumberColumns& b,
                        Pairs& pairs) const {
  pairs = Pairs();
  for (const std::uint64_t* const numbers : {a.activation, b.activation, a.layout, b.layout})
    pairs.numbers.insert(pairs.numbers.end(), numbers, numbers + a.size);
  for (std::size_t i = 0; i < a.size; ++i) {
    // Of a live run, and defined since the alignment was made.
    if (a.activation[i] >= alignment.a().activations.size() ||
        a.layout[i] >= alignment.a().layouts.size() ||
        b.activation[i] >= alignment.b().activations.size() ||
        b.layout[i] >= alignment.b().layouts.size())
      return;
    const auto id_a = static_cast<std::uint32_t>(a.activation[i]);
    const auto id_b = static_cast<std::uint32_t>(b.activation[i]);
    const ActivationTraits &of_a = alignment.traits_a(id_a), &of_b = alignment.traits_b(id_b);
    if (!of_a.wanted || !of_b.wanted || of_a.grouped || of_b.grouped ||
        alignment.b_of(id_a) != id_b)
      return;
    AddPair(alignment, id_a, alignment.a().layouts[a.layout[i]], alignment.b().layouts[b.layout[i]],
            pairs);
  }
  pairs.pair_off = true;
}

void ColumnDiff::AddPair(const Alignment& alignment, std::uint32_t id_a, const Layout& a,
                         const Layout& b, Pairs& pairs) const {
  const Stage stage = alignment.traits_a(id_a).stage;
  const bool usual = IsUsualPair(a, b);
  const double tolerance = context_.tolerance.value_or(DefaultTolerance(a.dtype, b.dtype));
  const bool never_rounded = !context_.tolerance && tolerance == 0;
  pairs.in_passes |=
      stage == Stage::kForward && alignment.a().activations[id_a].key.kind != Kind::kBuffer;
  pairs.weights += usual && stage == Stage::kWeights ? 1 : 0;
  pairs.batches += usual && stage == Stage::kBatch ? 1 : 0;
  pairs.hashed |= usual;
  pairs.usual.push_back(usual ? ~std::uint64_t{0} : 0);
  pairs.limit.push_back(never_rounded ? -1 : tolerance);
  pairs.tolerance.push_back(tolerance);
  pairs.components.push_back(IsComplex(a.dtype) ? 2 : 1);
  pairs.stages.push_back(stage);
  pairs.given.push_back(IsGiven(stage, a, b) ? 1 : 0);
  pairs.diverged.push_back(0);
}

void ColumnDiff::CountPairs(const Alignment& alignment, const NumberColumns& a,
                            const NumberColumns& b, Pairs& pairs, RankStepFindings& at,
                            const Compare& compare) {
  const bool noisy = context_.noise != nullptr && !context_.exact;
  std::uint64_t identical = 0, others = 0;
  // Usual ones that `compare` has not counted.
  std::uint64_t weights = pairs.weights, batches = pairs.batches;
  different_.clear();
  for (std::size_t i = 0; i < a.size; ++i) {
    const std::uint64_t usual = pairs.usual[i];
    if ((usual & measured_.same[i]) != 0) {
      ++identical;
      if (context_.cells) {
        CountDifferent(alignment, a, pairs, at);
        AddCell(a, i, kHeatIdentical, at);
      }
    } else if ((usual & measured_.usual[i]) != 0 &&
               !(noisy && measured_.distance[i] > pairs.limit[i])) {
      different_.push_back(i);
    } else {
      ++others;
      weights -= usual != 0 && pairs.stages[i] == Stage::kWeights ? 1 : 0;
      batches -= usual != 0 && pairs.stages[i] == Stage::kBatch ? 1 : 0;
      CountDifferent(alignment, a, pairs, at);  // the order of the block is that of the sums, too
      const TensorStats stats_a = a.StatsAt(i), stats_b = b.StatsAt(i);
      compare(ObservationAt(alignment.a(), a, i, stats_a),
              ObservationAt(alignment.b(), b, i, stats_b),
              static_cast<std::uint32_t>(a.activation[i]), pairs.stages[i]);
    }
  }
  const bool by_sketch = a.sketch_width > 0 && a.sketch_width == b.sketch_width;
  CountDifferent(alignment, a, pairs, at);
  MarkCompared(alignment, a, pairs);
  at.tally.records += a.size - others;
  at.tally.identical += identical;
  at.tally.by_sketch |= by_sketch && identical + others < a.size;
  at.tally.sketches_differ |= pairs.hashed && a.sketch_width != b.sketch_width;
  at.tally.weights.seen += weights;
  at.tally.batches.seen += batches;
}

void ColumnDiff::MarkCompared(const Alignment& alignment, const NumberColumns& a, Pairs& pairs) {
  for (std::size_t i = 0; i < a.size && !pairs.marked; ++i)
    alignment.MarkA(static_cast<std::uint32_t>(a.activation[i]), Alignment::kCompared);
  pairs.marked = true;
}

void ColumnDiff::CountDifferent(const Alignment& alignment, const NumberColumns& a, Pairs& pairs,
                                RankStepFindings& at) {
  Tally& tally = at.tally;
  std::uint64_t numeric = 0, given = 0;
  for (const std::size_t i : different_) {
    const bool by_size = measured_.distance[i] > pairs.limit[i];
    numeric += by_size ? 1 : 0;
    given += by_size && pairs.given[i] != 0 ? 1 : 0;
    if (!(by_size || context_.exact) || pairs.diverged[i] != 0) continue;
    alignment.MarkA(static_cast<std::uint32_t>(a.activation[i]), Alignment::kDiverged);
    pairs.diverged[i] = 1;
  }
  const std::uint64_t diverged = context_.exact ? different_.size() : numeric;
  tally.diverged += diverged;
  tally.within_tolerance += different_.size() - diverged;
  tally.numeric += numeric - given;
  for (const std::size_t i : different_) {
    const double distance = measured_.distance[i];
    distances_.Add(distance);
    follower_.Note(static_cast<std::uint32_t>(a.activation[i]), static_cast<float>(distance));
  }
  for (const std::size_t i : different_) {
    if (pairs.weights + pairs.batches == 0 && !context_.cells) break;
    tally.weights.differ += pairs.stages[i] == Stage::kWeights ? 1 : 0;
    tally.batches.differ += pairs.stages[i] == Stage::kBatch ? 1 : 0;
    const double distance = measured_.distance[i];
    if (context_.cells)
      AddCell(a, i,
              HeatLevel(distance, pairs.tolerance[i], distance > pairs.limit[i] || context_.exact),
              at);
  }
  different_.clear();
}

void ColumnDiff::AddCell(const NumberColumns& a, std::size_t i, std::uint8_t level,
                         RankStepFindings& at) {
  at.cells.push_back({.id = static_cast<std::uint32_t>(a.activation[i]),
                      .order = static_cast<std::uint32_t>(a.order[i]),
                      .of_b = false,
                      .level = level});
}

}  // namespace statcollect::query
