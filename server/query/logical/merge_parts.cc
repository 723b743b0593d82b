#include "server/query/logical/merge_parts.h"

#include <algorithm>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "common/merge_stats.h"
#include "common/names.h"
#include "common/shape.h"
#include "common/text.h"
#include "server/query/logical/overlap.h"

namespace statcollect::query {
namespace {

using Numbers = std::vector<std::int64_t>;

const Numbers& GlobalShape(const Layout& layout) {
  return layout.placement ? layout.placement->global_shape : layout.shape;
}

bool SamePlace(const Layout& a, const Layout& b) {
  if (!a.placement || !b.placement) return a.placement.has_value() == b.placement.has_value();
  return a.placement->boxes == b.placement->boxes && a.placement->ranges == b.placement->ranges;
}

std::string Text(const Numbers& numbers) {
  std::string text = "(";
  for (const std::int64_t number : numbers)
    text += (text.size() > 1 ? ", " : "") + std::to_string(number);
  return text + ")";
}

// Of what pieces of a batch in unknown order cannot tell.
constexpr std::uint32_t kOfWholeBatch = BitOf(Statistic::kShape) | BitOf(Statistic::kHash) |
                                        BitOf(Statistic::kL1) | BitOf(Statistic::kL2) |
                                        BitOf(Statistic::kZero) | BitOf(Statistic::kNeg) |
                                        BitOf(Statistic::kPos);
// Of what pieces of one number each, such as losses that a model returns, do not tell either: how
// they spread depends on how the batch is cut.
constexpr std::uint32_t kOfPieces =
    BitOf(Statistic::kMin) | BitOf(Statistic::kMax) | BitOf(Statistic::kStd);
// All but "signs of infinities were not kept", which is no statistic.
constexpr std::uint32_t kEverything =
    ((std::uint32_t{1} << kStatisticCount) - 1) & ~BitOf(Statistic::kInfSign);

std::uint32_t PieceNumber(const Part& part) {
  return part.layout->placement ? part.layout->placement->piece : 0;
}

std::uint32_t PiecesOf(const Part& part) {
  return part.layout->placement ? std::max(part.layout->placement->pieces, 1u) : 1;
}

std::tuple<std::uint32_t, std::uint32_t, std::uint32_t> PieceOf(const Part& part) {
  return {PieceNumber(part), part.micro_batch, part.call};
}

// 1 + the unordered dimension; 0: none.
std::uint32_t UnorderedOf(const Layout& layout) {
  return layout.placement ? layout.placement->unordered : 0;
}

// Entries of the set that a part with an unordered dimension is; of others 1.
std::uint64_t EntriesOf(const Layout& layout) {
  const std::uint32_t unordered = UnorderedOf(layout);
  return unordered == 0 ? 1 : static_cast<std::uint64_t>(layout.shape[unordered - 1]);
}

// Elements of the logical tensor that the part has; of a set, those of one entry.
std::uint64_t HeldBy(const Layout& layout) {
  Numbers shape = layout.shape;
  if (UnorderedOf(layout) != 0) shape[UnorderedOf(layout) - 1] = 1;
  return NumelOf(shape);
}

void Fail(MergePlan& plan, Tiling tiling, std::string problem) {
  if (plan.tiling == Tiling::kConflicting) return;
  plan.tiling = tiling;
  plan.problem = std::move(problem);
}

std::vector<std::uint32_t> RanksOf(std::span<const Part> parts, std::span<const std::uint32_t> of) {
  std::vector<std::uint32_t> ranks;
  for (const std::uint32_t i : of) ranks.push_back(parts[i].rank);
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  return ranks;
}

std::string Two(const Part& a, const Part& b) {
  return "ranks " + std::to_string(a.rank) + " and " + std::to_string(b.rank);
}

// Places the parts of one piece of the batch, numbered by `piece`.
void PlacePiece(std::span<const Part> parts, std::span<const std::uint32_t> piece,
                MergePlan& plan) {
  const Part& front = parts[piece.front()];
  const Numbers& shape = GlobalShape(*front.layout);
  const std::size_t begin = plan.counted.size();
  std::uint64_t held = 0;
  for (const std::uint32_t i : piece) {
    const Layout& layout = *parts[i].layout;
    if (GlobalShape(layout) != shape || layout.dtype != front.layout->dtype) {
      return Fail(plan, Tiling::kConflicting,
                  Two(front, parts[i]) + " do not agree about its global shape or dtype: " +
                      Text(shape) + " of " + std::string(Name(front.layout->dtype)) + " and " +
                      Text(GlobalShape(layout)) + " of " + std::string(Name(layout.dtype)));
    }
    if (EntriesOf(layout) != EntriesOf(*front.layout)) {
      return Fail(plan, Tiling::kConflicting,
                  Two(front, parts[i]) + " have parts of the same rows, and " +
                      std::to_string(EntriesOf(*front.layout)) + " and " +
                      std::to_string(EntriesOf(layout)) + " rows");
    }
    const auto known = plan.counted.begin() + static_cast<std::ptrdiff_t>(begin);
    const auto same = std::find_if(known, plan.counted.end(), [&](std::uint32_t at) {
      return SamePlace(*parts[at].layout, layout);
    });
    if (same != plan.counted.end()) {
      plan.replicas.push_back({.part = i, .of = *same});
      continue;
    }
    for (auto other = known; other != plan.counted.end(); ++other) {
      if (Overlap(*parts[*other].layout, layout))
        return Fail(plan, Tiling::kConflicting,
                    "the parts of " + Two(parts[*other], parts[i]) + " overlap");
    }
    plan.counted.push_back(i);
    held += HeldBy(layout);
  }
  if (held != NumelOf(shape)) {
    Fail(plan, Tiling::kIncomplete,
         RanksNamed("rank", RanksOf(parts, piece)) + " recorded " + std::to_string(held) +
             " of its " + std::to_string(NumelOf(shape)) + " elements");
  }
}

// Whether the parts of several micro-batches are boxes of one batch, as those of known samples are:
// together they are whole, and none is the same as one of another micro-batch. Then `plan` has
// them; else it is as it was.
bool PlaceAsOneBatch(std::span<const Part> parts, std::span<const std::uint32_t> sorted,
                     MergePlan& plan) {
  if (PieceOf(parts[sorted.front()]) == PieceOf(parts[sorted.back()])) return false;
  const bool boxes = std::all_of(sorted.begin(), sorted.end(), [&](std::uint32_t i) {
    const auto& place = parts[i].layout->placement;
    return place && !place->boxes.empty() && place->pieces <= 1;
  });
  if (!boxes) return false;
  MergePlan one;
  PlacePiece(parts, sorted, one);
  const bool apart =
      std::all_of(one.replicas.begin(), one.replicas.end(), [&](const auto& replica) {
        return PieceOf(parts[replica.part]) == PieceOf(parts[replica.of]);
      });
  if (one.tiling != Tiling::kWhole || !apart) return false;
  plan.counted = std::move(one.counted);
  plan.replicas = std::move(one.replicas);
  return true;
}

// Whether all pieces of the batch are there. Of a set, a rank may have none.
void CheckPieces(std::span<const Part> parts, std::span<const std::uint32_t> sorted,
                 MergePlan& plan) {
  const Part& front = parts[sorted.front()];
  std::uint32_t there = 0;
  std::optional<std::uint32_t> last;
  for (const std::uint32_t i : sorted) {
    if (PiecesOf(parts[i]) != PiecesOf(front)) {
      return Fail(plan, Tiling::kConflicting,
                  Two(front, parts[i]) + " do not agree into how many pieces the batch is split: " +
                      std::to_string(PiecesOf(front)) + " and " +
                      std::to_string(PiecesOf(parts[i])));
    }
    if (last != PieceNumber(parts[i])) ++there;
    last = PieceNumber(parts[i]);
  }
  if (there < PiecesOf(front) && UnorderedOf(*front.layout) == 0) {
    Fail(plan, Tiling::kIncomplete,
         RanksNamed("rank", RanksOf(parts, sorted)) + " recorded " + std::to_string(there) +
             " of the " + std::to_string(PiecesOf(front)) + " pieces of its batch");
  }
}

// The pieces of a set add up to a larger set.
void DescribeSet(std::span<const Part> parts, MergePlan& plan) {
  const std::uint32_t unordered = UnorderedOf(*parts.front().layout);
  std::set<std::tuple<std::uint32_t, std::uint32_t, std::uint32_t>> pieces;
  std::uint64_t entries = 0;
  for (const std::uint32_t i : plan.counted) {
    if (pieces.insert(PieceOf(parts[i])).second) entries += EntriesOf(*parts[i].layout);
  }
  plan.layout.shape[unordered - 1] = static_cast<std::int64_t>(entries);
  plan.nothing = plan.tiling == Tiling::kWhole && entries == 0;
  if (plan.nothing) plan.counted.clear();
}

// What is known of the sum of the parts.
void Describe(std::span<const Part> parts, std::size_t pieces, bool sums, MergePlan& plan) {
  Layout& layout = plan.layout;
  for (const Part& part : parts) {
    layout.absent |= part.layout->absent;
    layout.untrusted |= part.layout->untrusted;
    if (part.layout->placement && part.layout->placement->partial) layout.absent |= kEverything;
  }
  if (UnorderedOf(*parts.front().layout) != 0) {
    DescribeSet(parts, plan);
  } else if (pieces > 1 || PiecesOf(parts.front()) > 1) {
    layout.absent |= sums ? BitOf(Statistic::kHash) : kOfWholeBatch;
    if (!sums && IsWholeNumber(layout.dtype))
      layout.absent |= BitOf(Statistic::kMean) | BitOf(Statistic::kStd);
    if (!sums && layout.shape.empty()) layout.absent |= kOfPieces;
    layout.shape.clear();
    std::uint64_t elements = 0;
    for (const std::uint32_t i : plan.counted) elements += NumelOf(parts[i].layout->shape);
    if (sums) layout.shape = {static_cast<std::int64_t>(elements)};
    plan.has_sketch = false;
  }
  if (plan.tiling != Tiling::kWhole) {
    layout.absent |= kEverything;
    layout.shape.clear();
    plan.has_sketch = false;
    plan.counted.clear();
    plan.replicas.clear();
  }
  layout.untrusted &= ~layout.absent;
}

// What is absent is 0, as in records that agents send.
void ClearAbsent(const Layout& layout, TensorStats* stats) {
  if (layout.absent == 0) return;
  const auto clear = [&](Statistic statistic, auto& number) {
    if (!layout.Has(statistic)) number = 0;
  };
  clear(Statistic::kMin, stats->min);
  clear(Statistic::kMax, stats->max);
  clear(Statistic::kMean, stats->mean);
  clear(Statistic::kStd, stats->std);
  clear(Statistic::kL1, stats->l1);
  clear(Statistic::kL2, stats->l2);
  clear(Statistic::kNan, stats->nan);
  clear(Statistic::kInf, stats->pos_inf);
  clear(Statistic::kInf, stats->neg_inf);
  clear(Statistic::kZero, stats->zero);
  clear(Statistic::kNeg, stats->neg);
  clear(Statistic::kPos, stats->pos);
  clear(Statistic::kHash, stats->hash);
}

}  // namespace

MergePlan MakePlan(std::span<const Part> parts, bool sums) {
  MergePlan plan;
  std::vector<std::uint32_t> sorted;
  for (const Part& part : parts) {
    sorted.push_back(static_cast<std::uint32_t>(plan.parts.size()));
    plan.parts.push_back({part.rank, part.micro_batch, part.call, part.layout});
  }
  std::stable_sort(sorted.begin(), sorted.end(), [&](std::uint32_t a, std::uint32_t b) {
    return PieceOf(parts[a]) < PieceOf(parts[b]);
  });
  plan.layout = *parts[sorted.front()].layout;
  plan.layout.id = 0;
  plan.layout.shape = GlobalShape(*parts[sorted.front()].layout);
  plan.layout.placement.reset();
  const bool one_batch = PlaceAsOneBatch(parts, sorted, plan);
  std::size_t pieces = one_batch ? 1 : 0;
  for (auto begin = one_batch ? sorted.end() : sorted.begin(); begin != sorted.end(); ++pieces) {
    const auto end = std::find_if(begin, sorted.end(), [&](std::uint32_t i) {
      return PieceOf(parts[i]) != PieceOf(parts[*begin]);
    });
    PlacePiece(parts, {begin, end}, plan);
    begin = end;
  }
  CheckPieces(parts, sorted, plan);
  Describe(parts, pieces, sums, plan);
  return plan;
}

bool Fits(const MergePlan& plan, std::span<const Part> parts) {
  return std::equal(parts.begin(), parts.end(), plan.parts.begin(), plan.parts.end(),
                    [](const Part& part, const MergePlan::Key& key) {
                      return part.layout == key.layout && part.rank == key.rank &&
                             part.micro_batch == key.micro_batch && part.call == key.call;
                    });
}

bool Merge(const MergePlan& plan, std::span<const Part> parts, TensorStats* stats,
           std::vector<double>* sketch, std::vector<std::uint32_t>* differing) {
  *stats = TensorStats();
  for (const std::uint32_t i : plan.counted) statcollect::Merge(*stats, *parts[i].stats);
  for (const auto& [part, of] : plan.replicas) {
    if (parts[part].stats->hash != parts[of].stats->hash) differing->push_back(parts[part].rank);
  }
  ClearAbsent(plan.layout, stats);
  std::sort(differing->begin(), differing->end());
  if (!plan.has_sketch || plan.counted.empty()) return false;
  const std::size_t width = parts[plan.counted.front()].sketch.size();
  const bool has_all =
      width > 0 && std::all_of(plan.counted.begin(), plan.counted.end(),
                               [&](std::uint32_t i) { return parts[i].sketch.size() == width; });
  if (!has_all) return false;
  const std::size_t at = sketch->size();
  sketch->resize(at + width);
  for (const std::uint32_t i : plan.counted)
    MergeSketch(std::span(*sketch).subspan(at), parts[i].sketch);
  return true;
}

}  // namespace statcollect::query
