// A rank's configuration as of a step; the stored one has the newest values.
#ifndef STATCOLLECT_SERVER_QUERY_SETTINGS_CONFIG_AT_H_
#define STATCOLLECT_SERVER_QUERY_SETTINGS_CONFIG_AT_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "common/records.h"

namespace statcollect::query {

// The steps in which a change that was noticed at step `found` may have been made, because the
// agent checks settings only in some steps. From `found` on the new value certainly applies.
// `first_step`: of the attempt.
std::uint64_t ChangedNotBefore(std::uint64_t found, std::uint64_t first_step);

// Reverts the changes that `setting_changed` events report after `step`. `events`: of the rank's
// attempt, ascending; `first_step`: of that attempt. `found`: also those that may have been made in
// `step` or before, and were found later.
void TakeBackLaterChanges(std::uint64_t step, std::uint64_t first_step,
                          const std::vector<EventRecord>& events,
                          std::map<std::string, std::string>& config, bool found = false);

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_SETTINGS_CONFIG_AT_H_
