#include "client/commands/update_ratio.h"

#include "common/saturating.h"

namespace statcollect::client {

Status UpdateRatios::Write(const Observation& observation) {
  const TensorKey& key = observation.def->key;
  if (key.kind != Kind::kWeight || key.name != weight_) return Status::Ok();
  ranks_.assign(observation.ranks.begin(), observation.ranks.end());
  Last now{.step = observation.step,
           .record = {.stats = *observation.stats,
                      .sketch = {observation.sketch.begin(), observation.sketch.end()}}};
  const auto found = last_.find(observation.rank);
  if (found != last_.end() && key.mode != Mode::kInit) {
    const Last& before = found->second;
    const bool follows = now.step == before.step || now.step == SaturatingAdd(before.step, 1);
    const auto ratio = follows ? EstimateUpdateRatio(before.record, now.record) : std::nullopt;
    if (ratio) ratios_[{observation.rank, now.step}] = *ratio;
  }
  last_[observation.rank] = std::move(now);
  return Status::Ok();
}

}  // namespace statcollect::client
