#ifndef STATCOLLECT_SERVER_STORE_NEWEST_STEP_H_
#define STATCOLLECT_SERVER_STORE_NEWEST_STEP_H_

#include <cstdint>
#include <optional>

#include "common/saturating.h"
#include "common/status.h"
#include "server/store/run_reader.h"

namespace statcollect {

// The newest step up to `last` that `first_in` finds. `first_in(StepBounds)`: a Result of the first
// step there is within the bounds, as RunReader::FirstStatStep. A store finds steps only upwards,
// so windows below `last` are asked for, each twice as long as the one before, and then halves of
// the one that has any. Cost: one call if `last` has any, otherwise two for each doubling of the
// distance to it: at most 130.
template <typename FirstIn>
Result<std::optional<std::uint64_t>> NewestStep(std::uint64_t last, const FirstIn& first_in) {
  StepBounds window{.first = last, .last = last};
  std::uint64_t width = 1;
  std::uint64_t newest = 0;
  while (true) {
    const Result<std::optional<std::uint64_t>> found = first_in(window);
    if (!found.ok()) return found.status();
    if (*found) {
      newest = **found;
      break;
    }
    if (window.first == 0) return std::optional<std::uint64_t>();
    window = {.first = SaturatingSub(window.first, width), .last = window.first - 1};
    width = SaturatingMul(width, 2);
  }
  // Invariant: `newest` is such a step, and there is none beyond window.last.
  while (newest < window.last) {
    const std::uint64_t between = window.last - newest;
    const std::uint64_t middle = newest + between / 2 + between % 2;
    const Result<std::optional<std::uint64_t>> found =
        first_in({.first = middle, .last = window.last});
    if (!found.ok()) return found.status();
    if (*found) {
      newest = **found;
    } else {
      window.last = middle - 1;
    }
  }
  return std::optional<std::uint64_t>(newest);
}

}  // namespace statcollect

#endif  // STATCOLLECT_SERVER_STORE_NEWEST_STEP_H_
