// Finds where recorded settings that differ show first in a step.
#ifndef STATCOLLECT_SERVER_QUERY_VERDICT_SETTING_JUMPS_H_
#define STATCOLLECT_SERVER_QUERY_VERDICT_SETTING_JUMPS_H_

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "server/query/settings/other_settings.h"
#include "server/query/verdict/jumps.h"

namespace statcollect::query {

// The jump of a setting that shows first in `step[index]`.
Jump MakeSettingJump(std::span<const Explained> step, std::size_t index);

// The first candidate that stands out about as much as the most prominent one; empty if none stands
// out.
std::optional<std::size_t> FirstThatStandsOut(std::span<const Explained> step,
                                              const std::vector<std::size_t>& candidates);

// One jump for each module and each optimizer with a differing setting and a difference of any size
// in the step. For a module it is the first output. For a module that contains others, it is the
// tensor inside that stands out most, or the first one if nothing before it differs. `quiet`:
// everything before the step agrees bit for bit; `first_step`: the step is the run's first, in
// which some settings have no effect yet.
std::vector<Jump> FindSettingJumps(const OtherSettings& settings, std::span<const Explained> step,
                                   bool quiet, bool first_step);

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_VERDICT_SETTING_JUMPS_H_
