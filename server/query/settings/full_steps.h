// The steps that a rank recorded in full under an overhead budget: its setting
// `recording.full_steps`, such as "0-13/1, 14-/10, 95-98/1" (docs/python.md). In other steps it
// recorded scalars and batches.
#ifndef STATCOLLECT_SERVER_QUERY_SETTINGS_FULL_STEPS_H_
#define STATCOLLECT_SERVER_QUERY_SETTINGS_FULL_STEPS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "server/query/settings/module_keys.h"

namespace statcollect::query {

class RecordedInFull {
 public:
  // Absent: the rank had no budget, or the setting cannot be read: every step is taken as recorded
  // in full.
  static std::optional<RecordedInFull> Of(const Config& config);
  bool Contains(std::uint64_t step) const;

 private:
  struct Range {
    std::uint64_t first = 0, last = 0, every = 1;
  };
  std::vector<Range> ranges_;
};

// "0..3 and multiples of 10 up to 110"; long lists are cut. `steps`: ascending, not empty.
std::string DescribeSteps(const std::vector<std::uint64_t>& steps);

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_SETTINGS_FULL_STEPS_H_
