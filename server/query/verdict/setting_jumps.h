// Where recorded settings that differ show first in a step.
#ifndef STATCOLLECT_SERVER_QUERY_VERDICT_SETTING_JUMPS_H_
#define STATCOLLECT_SERVER_QUERY_VERDICT_SETTING_JUMPS_H_

#include <cstddef>
#include <span>
#include <vector>

#include "server/query/settings/other_settings.h"
#include "server/query/verdict/jumps.h"

namespace statcollect::query {

// The jump of a setting that shows first in `step[index]`.
Jump MakeSettingJump(std::span<const Explained> step, std::size_t index);

// One jump for each module and each optimizer that has such a setting and a difference in the step, of any
// size: of a module its first output; of one that contains others, the tensor in it that stands out most, or
// the first one if nothing before it differs. `quiet`: everything before the step agrees bit for bit;
// `first_step`: the first of the run, in which some settings have no effect yet.
std::vector<Jump> FindSettingJumps(const OtherSettings& settings, std::span<const Explained> step, bool quiet,
                                   bool first_step);

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_VERDICT_SETTING_JUMPS_H_
