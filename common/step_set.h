// Sets of steps: "0-9,20,100-", "every=10", "0-99,every=10", and MindSpore's "0|5-8|100-120".
#ifndef STATCOLLECT_COMMON_STEP_SET_H_
#define STATCOLLECT_COMMON_STEP_SET_H_

#include <cstdint>
#include <limits>
#include <optional>
#include <string_view>
#include <vector>

#include "common/status.h"

namespace statcollect {

// Closed ranges, thinned by `every`. The default contains every step.
class StepSet {
 public:
  static constexpr std::uint64_t kLastStep = std::numeric_limits<std::uint64_t>::max();

  // Empty text: every step. Ranges are closed; "100-" has no end. `every=N` (N >= 1) keeps the
  // steps divisible by N; alone, it applies to all steps. kInvalidArgument names the invalid part
  // and the grammar.
  static Result<StepSet> Parse(std::string_view text);

  // Cost: one comparison for a single range, and the logarithm of their number otherwise.
  bool Contains(std::uint64_t step) const {
    if (step % every_ != 0) return false;
    const Range& range = ranges_.size() == 1 ? ranges_.front() : RangeUpTo(step);
    return step >= range.first && step <= range.last;
  }
  // The lowest step of the set that is not below this one; absent: there is none.
  std::optional<std::uint64_t> AtOrAfter(std::uint64_t step) const;
  std::uint64_t first() const { return ranges_.front().first; }  // lower bound of the set
  std::uint64_t last() const { return ranges_.back().last; }     // upper bound of the set

 private:
  struct Range {
    std::uint64_t first = 0, last = kLastStep;
  };
  static std::vector<Range> Merged(std::vector<Range> ranges);
  const Range& RangeUpTo(
      std::uint64_t step) const;  // the last that begins no later, otherwise the first

  std::vector<Range> ranges_ = {Range{}};  // sorted, disjoint, never empty
  std::uint64_t every_ = 1;
};

}  // namespace statcollect

#endif  // STATCOLLECT_COMMON_STEP_SET_H_
