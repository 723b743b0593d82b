#include "server/query/logical/merge_parts.h"

#include <algorithm>
#include <utility>

#include "common/merge_stats.h"
#include "common/shape.h"

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
  for (const std::int64_t number : numbers) text += (text.size() > 1 ? ", " : "") + std::to_string(number);
  return text + ")";
}

bool BoxesOverlap(const Placement& a, const Placement& b) {
  const std::size_t dims = a.global_shape.size();
  for (std::size_t i = 0; i + 2 * dims <= a.boxes.size() && dims > 0; i += 2 * dims) {
    for (std::size_t j = 0; j + 2 * dims <= b.boxes.size(); j += 2 * dims) {
      bool apart = false;
      for (std::size_t d = 0; d < dims; ++d) {
        const std::int64_t from_a = a.boxes[i + d], to_a = from_a + a.boxes[i + dims + d];
        const std::int64_t from_b = b.boxes[j + d], to_b = from_b + b.boxes[j + dims + d];
        apart = apart || to_a <= from_b || to_b <= from_a;
      }
      if (!apart) return true;
    }
  }
  return false;
}

bool RangesOverlap(const Placement& a, const Placement& b) {
  for (std::size_t i = 0; i + 1 < a.ranges.size(); i += 2) {
    for (std::size_t j = 0; j + 1 < b.ranges.size(); j += 2) {
      if (a.ranges[i] < b.ranges[j + 1] && b.ranges[j] < a.ranges[i + 1]) return true;
    }
  }
  return false;
}

bool Overlap(const Layout& a, const Layout& b) {
  if (NumelOf(a.shape) == 0 || NumelOf(b.shape) == 0) return false;
  if (!a.placement || !b.placement) return true;
  if (a.placement->boxes.empty() && a.placement->ranges.empty()) return true;
  if (b.placement->boxes.empty() && b.placement->ranges.empty()) return true;
  return BoxesOverlap(*a.placement, *b.placement) || RangesOverlap(*a.placement, *b.placement);
}

Tiling MakeTiling(std::span<const Part> parts) {
  Tiling tiling;
  const Numbers& shape = GlobalShape(*parts.front().layout);
  std::uint64_t held = 0;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const Layout& layout = *parts[i].layout;
    if (GlobalShape(layout) != shape || layout.dtype != parts.front().layout->dtype) {
      tiling.problem = "ranks " + std::to_string(parts.front().rank) + " and " +
                       std::to_string(parts[i].rank) +
                       " do not agree about its global shape or dtype: " + Text(shape) + " and " +
                       Text(GlobalShape(layout));
      return tiling;
    }
    const auto same = std::find_if(tiling.first.begin(), tiling.first.end(),
                                   [&](std::size_t at) { return SamePlace(*parts[at].layout, layout); });
    tiling.replica_of.push_back(same == tiling.first.end() ? i : *same);
    if (same != tiling.first.end()) continue;
    for (const std::size_t other : tiling.first) {
      if (!Overlap(*parts[other].layout, layout)) continue;
      tiling.problem = "the parts of ranks " + std::to_string(parts[other].rank) + " and " +
                       std::to_string(parts[i].rank) + " overlap";
      return tiling;
    }
    tiling.first.push_back(i);
    held += NumelOf(layout.shape);
  }
  tiling.complete = held == NumelOf(shape);
  return tiling;
}

// Of what pieces of a batch in unknown order cannot tell.
constexpr std::uint32_t kOfWholeBatch =
    BitOf(Statistic::kShape) | BitOf(Statistic::kHash) | BitOf(Statistic::kL1) | BitOf(Statistic::kL2) |
    BitOf(Statistic::kZero) | BitOf(Statistic::kNeg) | BitOf(Statistic::kPos);

std::tuple<std::uint32_t, std::uint32_t, std::uint32_t> PieceOf(const Part& part) {
  return {part.layout->placement ? part.layout->placement->piece : 0, part.micro_batch, part.call};
}

bool IsWholeNumber(DType dtype) { return dtype >= DType::kI8 && dtype <= DType::kBool; }

bool IsCutByBatch(const Part& part) { return part.layout->placement && part.layout->placement->pieces > 1; }

}  // namespace

const Tiling& PartMerger::TilingOf(std::span<const Part> parts) {
  std::vector<const Layout*> layouts;
  layouts.reserve(parts.size());
  for (const Part& part : parts) layouts.push_back(part.layout);
  const auto known = known_.find(layouts);
  if (known != known_.end()) return known->second;
  return known_.emplace(std::move(layouts), MakeTiling(parts)).first->second;
}

MergedTensor PartMerger::Merge(std::span<const Part> parts) {
  MergedTensor merged;
  std::vector<Part> sorted(parts.begin(), parts.end());
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const Part& a, const Part& b) { return PieceOf(a) < PieceOf(b); });
  merged.layout = *sorted.front().layout;
  merged.layout.shape = GlobalShape(*sorted.front().layout);
  merged.layout.placement.reset();
  std::size_t pieces = 0;
  bool every_sketch = true;
  for (auto begin = sorted.begin(); begin != sorted.end(); ++pieces) {
    const auto end =
        std::find_if(begin, sorted.end(), [&](const Part& part) { return PieceOf(part) != PieceOf(*begin); });
    const std::span<const Part> piece(begin, end);
    begin = end;
    const Tiling& tiling = TilingOf(piece);
    if (!tiling.problem.empty()) {
      merged.problem = tiling.problem;
      return merged;
    }
    merged.complete = merged.complete && tiling.complete;
    for (std::size_t i = 0; i < piece.size(); ++i) {
      const Part& part = piece[i];
      merged.layout.absent |= part.layout->absent;
      merged.layout.untrusted |= part.layout->untrusted;
      if (tiling.replica_of[i] != i) {
        if (part.stats->hash != piece[tiling.replica_of[i]].stats->hash)
          merged.differing.push_back(part.rank);
        continue;
      }
      statcollect::Merge(merged.stats, *part.stats);
      every_sketch = every_sketch && !part.sketch.empty();
      if (!every_sketch) continue;
      merged.sketch.resize(part.sketch.size());
      if (merged.sketch.size() == part.sketch.size()) MergeSketch(merged.sketch, part.sketch);
    }
  }
  const bool in_pieces = pieces > 1 || IsCutByBatch(sorted.front());
  if (in_pieces) {
    merged.layout.absent |= kOfWholeBatch;
    if (IsWholeNumber(merged.layout.dtype))
      merged.layout.absent |= BitOf(Statistic::kMean) | BitOf(Statistic::kStd);
    merged.layout.shape.clear();
  }
  if (!merged.complete) merged.layout.absent |= BitOf(Statistic::kHash);
  if (in_pieces || !merged.complete || !every_sketch) merged.sketch.clear();
  merged.layout.untrusted &= ~merged.layout.absent;
  return merged;
}

}  // namespace statcollect::query
