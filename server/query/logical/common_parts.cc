#include "server/query/logical/common_parts.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <string>
#include <utility>

#include "common/merge_stats.h"
#include "common/shape.h"
#include "server/query/compare/distance.h"
#include "server/query/logical/overlap.h"
#include "server/query/place_text.h"
#include "server/query/run_view.h"

namespace statcollect::query {
namespace {

using Indexes = std::vector<std::uint32_t>;  // of parts

// Parts of both sides that cover the same elements.
struct Common {
  Indexes a, b;
};

bool HasRanges(const Part& part) {
  return part.layout->placement && !part.layout->placement->ranges.empty();
}

// Boxes and ranges of the flattened tensor are not compared with each other: they may have elements
// in common.
bool MayOverlap(const Part& a, const Part& b) {
  return HasRanges(a) != HasRanges(b) || Overlap(*a.layout, *b.layout);
}

// Groups that overlap, directly or through others. `a`, `b`: parts that each make up the whole.
std::vector<Common> Group(std::span<const Part> parts_a, const Indexes& a,
                          std::span<const Part> parts_b, const Indexes& b) {
  std::vector<std::size_t> group(a.size() + b.size());  // leads to the group's first member
  std::iota(group.begin(), group.end(), 0);
  const auto root = [&](std::size_t at) {
    while (group[at] != at) at = group[at] = group[group[at]];
    return at;
  };
  for (std::size_t i = 0; i < a.size(); ++i) {
    for (std::size_t j = 0; j < b.size(); ++j) {
      if (!MayOverlap(parts_a[a[i]], parts_b[b[j]])) continue;
      const std::size_t x = root(i), y = root(a.size() + j);
      group[std::max(x, y)] = std::min(x, y);
    }
  }
  std::vector<Common> found(group.size());
  for (std::size_t i = 0; i < a.size(); ++i) found[root(i)].a.push_back(a[i]);
  for (std::size_t j = 0; j < b.size(); ++j) found[root(a.size() + j)].b.push_back(b[j]);
  std::erase_if(found, [](const Common& common) { return common.a.empty() || common.b.empty(); });
  return found;
}

// The sum of some parts.
struct Sum {
  Layout layout;
  TensorStats stats;
  std::vector<double> sketch;

  Sum(std::span<const Part> parts, const Indexes& of) {
    layout = *parts[of.front()].layout;
    layout.placement.reset();
    bool has_sketch = true;
    std::int64_t elements = 0;
    for (const std::uint32_t i : of) {
      layout.absent |= parts[i].layout->absent;
      layout.untrusted |= parts[i].layout->untrusted;
      elements += static_cast<std::int64_t>(NumelOf(parts[i].layout->shape));
      has_sketch = has_sketch && parts[i].sketch.size() == parts[of.front()].sketch.size();
    }
    layout.shape = {elements};
    layout.untrusted &= ~layout.absent;
    if (has_sketch) sketch.resize(parts[of.front()].sketch.size());
    for (const std::uint32_t i : of) {
      Merge(stats, *parts[i].stats);
      if (!sketch.empty()) MergeSketch(sketch, parts[i].sketch);
    }
  }
  Observation View() const {
    Observation seen;
    seen.layout = &layout;
    seen.stats = &stats;
    seen.sketch = sketch;
    return seen;
  }
};

// Those that hold one of the parts, or a replica of it.
std::vector<std::uint32_t> RanksOf(std::span<const Part> parts, const MergePlan& plan,
                                   const Indexes& of) {
  const auto in = [&](std::uint32_t part) {
    return std::find(of.begin(), of.end(), part) != of.end();
  };
  std::vector<std::uint32_t> ranks;
  for (const std::uint32_t i : of) ranks.push_back(parts[i].rank);
  for (const auto& [part, replicated] : plan.replicas) {
    if (in(replicated)) ranks.push_back(parts[part].rank);
  }
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  return ranks;
}

// As the side says it that has fewer parts.
std::string PlaceOf(std::span<const Part> parts_a, std::span<const Part> parts_b,
                    const Common& common) {
  const bool of_a = common.a.size() <= common.b.size();
  const std::span<const Part> parts = of_a ? parts_a : parts_b;
  const Indexes& of = of_a ? common.a : common.b;
  Placement place = *parts[of.front()].layout->placement;
  for (std::size_t i = 1; i < of.size(); ++i) {
    const Placement& more = *parts[of[i]].layout->placement;
    place.boxes.insert(place.boxes.end(), more.boxes.begin(), more.boxes.end());
    place.ranges.insert(place.ranges.end(), more.ranges.begin(), more.ranges.end());
  }
  return PlaceText(place);
}

double DistanceOf(const Sum& a, const Sum& b, std::optional<double> tolerance) {
  const Comparison compared =
      Compare(a.View(), b.View(), tolerance, /*exact=*/false, /*interval=*/false);
  if (compared.distance) return compared.distance->value;
  return compared.agreement == Agreement::kDiverged ? std::numeric_limits<double>::infinity() : 0;
}

}  // namespace

CommonParts CompareCommonParts(std::span<const Part> a, std::span<const Part> b,
                               std::optional<double> tolerance) {
  const MergePlan plan_a = MakePlan(a), plan_b = MakePlan(b);
  // Pieces of a batch in unknown order have no place.
  const auto is_placed = [](const MergePlan& plan) {
    return plan.tiling == Tiling::kWhole && plan.has_sketch && plan.counted.size() > 1;
  };
  if (!is_placed(plan_a) || !is_placed(plan_b) || plan_a.layout.shape != plan_b.layout.shape)
    return {};
  const std::vector<Common> groups = Group(a, plan_a.counted, b, plan_b.counted);
  if (groups.size() < 2) return {};
  std::vector<double> distances;
  for (const Common& common : groups)
    distances.push_back(DistanceOf(Sum(a, common.a), Sum(b, common.b), tolerance));
  const double largest = *std::max_element(distances.begin(), distances.end());
  const double limit = std::min(tolerance.value_or(0), largest / 2);
  CommonParts found{.differing = {}, .total = static_cast<std::uint32_t>(groups.size())};
  for (std::size_t i = 0; i < groups.size(); ++i) {
    if (distances[i] > limit) {
      found.differing.push_back({.place = PlaceOf(a, b, groups[i]),
                                 .ranks_a = RanksOf(a, plan_a, groups[i].a),
                                 .ranks_b = RanksOf(b, plan_b, groups[i].b),
                                 .distance = distances[i]});
    }
  }
  return found;
}

}  // namespace statcollect::query
