// The part of LogicalRun that knows steps by their shape.
#include <algorithm>
#include <iterator>
#include <map>
#include <memory>
#include <unordered_map>
#include <utility>

#include "server/query/logical/logical_run.h"

namespace statcollect::query {

std::shared_ptr<const StepShape> LogicalRun::ShapeOf(Attempt& attempt, const StepHashes& step) {
  std::vector<std::shared_ptr<const StepShape>> shapes;
  {
    MutexLock lock(plans_mutex_);
    shapes = attempt.shapes;
  }
  const auto found =
      std::find_if(shapes.begin(), shapes.end(), [&](const auto& shape) { return shape->IsOf(step); });
  return found == shapes.end() ? nullptr : *found;
}

bool LogicalRun::KnowsShapes(const Attempt& attempt) {
  MutexLock lock(plans_mutex_);
  return !attempt.shapes.empty();
}

void LogicalRun::KeepShape(Attempt& attempt, std::uint64_t number, const Step& step, const Merged& merged) {
  StepHashes hashes;
  std::map<const TensorStats*, std::uint32_t>
      first_of;  // by the begin of a block: the number of its first record
  for (std::size_t b = 0; b < step.used; ++b) {
    const StatColumns& block = step.blocks[b];
    if (!block.empty()) first_of[block.stats.data()] = static_cast<std::uint32_t>(hashes.hash.size());
    hashes.Add(step.members[b], HashesOf(block));
  }
  const auto number_of = [&](const Part& part) {
    const auto& [begin, first] = *std::prev(first_of.upper_bound(part.stats));
    return first + static_cast<std::uint32_t>(part.stats - begin);
  };
  std::unordered_map<std::uint32_t, std::uint32_t> place_of;  // by logical id
  MergedHeads heads;
  for (std::size_t b = 0; b < kMergedBlocks; ++b) {
    heads[b] = HeadWithoutValues(number, merged.blocks[b]);
    for (const std::uint32_t id : merged.blocks[b].activation)
      place_of.emplace(id, static_cast<std::uint32_t>(place_of.size()));
  }
  std::vector<std::uint32_t> to(hashes.hash.size(), StepShape::kNotMerged);
  StepShape::Pairs replicas;
  for (const auto& [id, parts] : step.parts) {
    const MergePlan& plan = *step.plans[id];
    for (const std::uint32_t i : plan.counted) to[number_of(parts[i])] = place_of.at(id);
    for (const auto& [part, of] : plan.replicas)
      replicas.emplace_back(number_of(parts[part]), number_of(parts[of]));
  }
  MutexLock lock(plans_mutex_);
  const auto same = [&](const auto& shape) { return shape->IsOf(hashes); };
  if (std::any_of(attempt.shapes.begin(), attempt.shapes.end(), same)) return;
  auto shape =
      std::make_shared<const StepShape>(std::move(hashes.records), std::move(to), std::move(replicas), heads);
  if (attempt.shapes.size() == kShapesMax) attempt.shapes.erase(attempt.shapes.begin());
  attempt.shapes.push_back(std::move(shape));
}

}  // namespace statcollect::query
