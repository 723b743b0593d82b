// A rank's configuration as of a step; the stored one has the newest values.
#ifndef STATCOLLECT_SERVER_QUERY_SETTINGS_CONFIG_AT_H_
#define STATCOLLECT_SERVER_QUERY_SETTINGS_CONFIG_AT_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "common/records.h"

namespace statcollect::query {

// Reverts the changes that `setting_changed` events report after `step`. `events`: of the rank's attempt,
// ascending; `first_step`: of that attempt.
void TakeBackLaterChanges(std::uint64_t step, std::uint64_t first_step,
                          const std::vector<EventRecord>& events, std::map<std::string, std::string>& config);

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_SETTINGS_CONFIG_AT_H_
