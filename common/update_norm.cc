#include "common/update_norm.h"

#include <cmath>
#include <utility>

#include "common/saturating.h"

namespace statcollect {

void UpdateNorm::Add(std::uint32_t activation, std::uint64_t step, const TensorStats& stats,
                     std::span<const double> sketch) {
  ++added_;
  WeightRecord record{.stats = stats, .sketch = {sketch.begin(), sketch.end()}};
  const auto [place, first] = last_.try_emplace(activation);
  Weight& last = place->second;
  if (first) bytes_ += sizeof(*place) + sketch.size_bytes() + 64;
  if (!first && SaturatingAdd(last.step, 1) == step && !sketch.empty()) {
    if (const auto ratio = EstimateUpdateRatio(last.record, record)) {
      ++moved_;
      squares_ += std::pow(ratio->value * last.record.stats.l2, 2);
    }
  }
  last = {.step = step, .record = std::move(record)};
}

std::optional<double> UpdateNorm::EndStep() {
  const double squares = std::exchange(squares_, 0);
  weights_ = std::exchange(added_, 0);
  const bool whole = std::exchange(moved_, 0) == weights_;
  if (!whole || !(squares > 0) || !std::isfinite(squares)) return std::nullopt;
  return std::sqrt(squares);
}

}  // namespace statcollect
