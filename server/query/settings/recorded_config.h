// The recorded configurations of two runs, as far as they can be compared.
#ifndef STATCOLLECT_SERVER_QUERY_SETTINGS_RECORDED_CONFIG_H_
#define STATCOLLECT_SERVER_QUERY_SETTINGS_RECORDED_CONFIG_H_

#include <map>
#include <string>
#include <vector>

#include "common/status.h"
#include "server/query/run_view.h"

namespace statcollect::query {

struct RecordedConfigs {
  std::map<std::string, std::string> a, b;
  std::vector<std::string> notes;  // what was left out, one sentence each
};

// From the newest attempt's lowest rank, with two exceptions. (1) A schedule changes learning rate, momentum
// and betas with the steps: they come from the newest attempts of both runs that begin at the same step, and
// are left out if there are none. (2) If one run recorded nothing (an import has only import.* settings),
// nothing is compared. Cost: a scan of the steps if a run has several attempts.
Result<RecordedConfigs> ReadConfigs(const RunView& a, const RunView& b);

// Whether the configuration only says where an import came from.
bool HasNoConfig(const std::map<std::string, std::string>& config);

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_SETTINGS_RECORDED_CONFIG_H_
