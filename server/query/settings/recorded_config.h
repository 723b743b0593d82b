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

// Of the newest attempt's lowest rank, with two exceptions. What a schedule moves is that of launches at the
// same step (scheduled.h). Where one run recorded nothing (an import of another tool's dump has only its own
// import.* settings), nothing is compared.
RecordedConfigs ReadConfigs(const RunView& a, const RunView& b);

// Whether the configuration only says where an import came from.
bool HasNoConfig(const std::map<std::string, std::string>& config);

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_SETTINGS_RECORDED_CONFIG_H_
