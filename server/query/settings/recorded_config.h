// The recorded configurations of two runs, as far as they can be compared.
#ifndef STATCOLLECT_SERVER_QUERY_SETTINGS_RECORDED_CONFIG_H_
#define STATCOLLECT_SERVER_QUERY_SETTINGS_RECORDED_CONFIG_H_

#include <map>
#include <string>
#include <vector>

#include "server/query/run_view.h"

namespace statcollect::query {

struct RecordedConfigs {
  std::map<std::string, std::string> a, b;
  std::vector<std::string> notes;  // what was left out, one sentence each
};

// The configurations of the newest attempts' lowest ranks, with two exceptions: settings that a
// schedule changes are those of launches that begin at the same step (scheduled.h); and if one run
// recorded no configuration (an import has only import.* settings), nothing is compared.
RecordedConfigs ReadConfigs(const RunView& a, const RunView& b);

// Whether the configuration only says where an import came from.
bool HasNoConfig(const std::map<std::string, std::string>& config);

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_SETTINGS_RECORDED_CONFIG_H_
