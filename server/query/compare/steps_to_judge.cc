#include "server/query/compare/steps_to_judge.h"

#include <algorithm>
#include <utility>

#include "common/wide_loops.h"

namespace statcollect::query {
namespace {

constexpr float kSmallest = 1e-7F;  // of rounding size in f32: rises from below count from here
constexpr float kWorthALook = 2.5F;

// Several at a time, so that vectors can be used. Infinity over infinity, which is not a number, is
// never the largest.
STATCOLLECT_WIDE_LOOPS float LargestRise(const float* before, const float* now, std::size_t count) {
  constexpr std::size_t kAtOnce = 32;
  float each[kAtOnce];
  for (float& one : each) one = 1;
  std::size_t whole = 0;
  for (; whole + kAtOnce <= count; whole += kAtOnce) {
    for (std::size_t j = 0; j < kAtOnce; ++j) {
      const float from = before[whole + j],
                  rise = now[whole + j] / (from < kSmallest ? kSmallest : from);
      each[j] = each[j] < rise ? rise : each[j];
    }
  }
  float largest = 1;
  for (const float one : each) largest = largest < one ? one : largest;
  for (std::size_t i = whole; i < count; ++i) {
    const float rise = now[i] / (before[i] < kSmallest ? kSmallest : before[i]);
    largest = largest < rise ? rise : largest;
  }
  return largest;
}

}  // namespace

float LargestRise(const Distances& before, const Distances& now) {
  const std::size_t common = std::min(before.size(), now.size());
  float largest = LargestRise(before.data(), now.data(), common);
  for (std::size_t i = common; i < now.size(); ++i) largest = std::max(largest, now[i] / kSmallest);
  return largest;
}

void DistanceFollower::BeginStep(std::size_t ids) {
  first_ = !begun_;
  begun_ = true;
  if (differs_ || differed_) {  // otherwise both are all zero
    before_.swap(now_);
    std::fill(now_.begin(), now_.end(), 0.0F);
  }
  differed_ = std::exchange(differs_, false);
  MakeRoom(ids);
}

float DistanceFollower::Rise() const {
  return first_ || !differs_ ? 1 : LargestRise(before_, now_);
}

void StepsToJudge::Take(std::uint64_t step, std::size_t place, const StepRise& rise) {
  float factor = rise.rise;
  std::shared_ptr<const Distances>& last = last_[place];
  if (rise.first != nullptr) {
    static const Distances kNone;
    factor = std::max(factor, LargestRise(last == nullptr ? kNone : *last, *rise.first));
  }
  if (rise.ends) last = rise.last;
  if (!rise.differs) {
    if (!first_.contains(place)) agreeing_[place] += rise.records;
    return;
  }
  std::vector<std::uint64_t>& first = first_[place];
  if (first.size() < kFirstSteps) {
    first.push_back(step);
    return;
  }
  if (factor < kWorthALook) return;
  rises_.insert({.factor = factor, .step = step, .place = place});
  if (rises_.size() > kRisesMax) rises_.erase(rises_.begin());
}

std::uint64_t StepsToJudge::AgreeingBefore(std::size_t place) const {
  const auto found = agreeing_.find(place);
  return found == agreeing_.end() ? 0 : found->second;
}

std::map<std::size_t, std::set<std::uint64_t>> StepsToJudge::Chosen() const {
  std::map<std::size_t, std::set<std::uint64_t>> chosen;
  std::uint64_t earliest = ~std::uint64_t{0};
  for (const auto& [place, steps] : first_) earliest = std::min(earliest, steps.front());
  for (const auto& [place, steps] : first_) {  // those that differ first
    if (steps.front() == earliest && chosen.size() < kPlacesMax / 2)
      chosen[place].insert(steps.begin(), steps.end());
  }
  for (auto rise = rises_.rbegin(); rise != rises_.rend(); ++rise) {
    if (!chosen.contains(rise->place) && chosen.size() >= kPlacesMax) continue;
    std::set<std::uint64_t>& steps = chosen[rise->place];
    steps.insert(rise->step);
    const std::vector<std::uint64_t>& first = first_.at(rise->place);
    steps.insert(first.begin(), first.end());
  }
  return chosen;
}

}  // namespace statcollect::query
