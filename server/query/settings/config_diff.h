// Which settings of two runs differ: evidence for the reader, never a divergence by itself.
#ifndef STATCOLLECT_SERVER_QUERY_SETTINGS_CONFIG_DIFF_H_
#define STATCOLLECT_SERVER_QUERY_SETTINGS_CONFIG_DIFF_H_

#include <map>
#include <string>
#include <vector>

#include "server/query/reports.h"

namespace statcollect::query {

// By key. Leaves out what differs between any two launches and explains nothing (docs/divergence.md lists
// it): process ids, start times, names and ports of the launch, the run's own name.
std::vector<ConfigDifference> CompareConfig(const std::map<std::string, std::string>& a,
                                            const std::map<std::string, std::string>& b);

// Whether a key is left out by that.
bool IsVolatileSetting(const std::string& key);
// Whether a difference in the key would say something about these two runs. The state of torch's random
// numbers does only where both runs set the same seed: then one of them has drawn more numbers than the
// other.
bool IsCompared(const std::string& key, const std::map<std::string, std::string>& a,
                const std::map<std::string, std::string>& b);
// Equal text, or numbers of equal value ("1e-3", "0.001"), or the same of "true" and "false" in any case.
bool SameSetting(const std::string& a, const std::string& b);

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_SETTINGS_CONFIG_DIFF_H_
