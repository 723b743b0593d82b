// Steps whose full statistics all ranks of a run record, although an overhead budget thins the
// others out (docs/decisions/0030-overhead-budget.md).
#ifndef STATCOLLECT_SERVER_INGEST_FULL_STEPS_H_
#define STATCOLLECT_SERVER_INGEST_FULL_STEPS_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "common/records.h"

namespace statcollect {

// Those from `first` to `last` that are divisible by `every`. One step that has passed is a
// request: rank 0 proposes steps that are still to come.
struct FullSteps {
  static constexpr std::uint64_t kNoEnd = ~std::uint64_t{0};
  std::uint64_t first = 0, last = kNoEnd, every = 1;
  bool operator==(const FullSteps&) const = default;
};

// What a rank proposes with events `overhead` that have the field `announce`. What cannot be read
// is left out.
std::vector<FullSteps> ProposedFullSteps(const std::vector<EventRecord>& events);

}  // namespace statcollect

#endif  // STATCOLLECT_SERVER_INGEST_FULL_STEPS_H_
