// Settings that differ between two runs: evidence, never a divergence by themselves.
#ifndef STATCOLLECT_SERVER_QUERY_SETTINGS_CONFIG_DIFF_H_
#define STATCOLLECT_SERVER_QUERY_SETTINGS_CONFIG_DIFF_H_

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/query/reports.h"

namespace statcollect::query {

// Sorted by key. Leaves out keys that always differ and explain nothing (docs/divergence.md lists
// them): process ids, start times, names and ports of the launch, the run's own name.
std::vector<ConfigDifference> CompareConfig(const std::map<std::string, std::string>& a,
                                            const std::map<std::string, std::string>& b);

// Whether it leaves out the key.
bool IsVolatileSetting(const std::string& key);
// Whether a difference in the key says something about these two runs. The state of torch's random
// numbers does only if both runs set the same seed: then one of them has drawn more numbers than
// the other.
bool IsCompared(const std::string& key, const std::map<std::string, std::string>& a,
                const std::map<std::string, std::string>& b);
// The value of a setting in a run that recorded it by leaving it out: a module of which no mode is
// recorded is in the mode of its model. Empty: not set, or not known.
std::optional<std::string> Implied(const std::string& key,
                                   const std::map<std::string, std::string>& config);
// Equal text, numbers of equal value ("1e-3", "0.001"), or the same of "true" and "false" in any
// case.
bool SameSetting(const std::string& a, const std::string& b);
// Whether it is a text that names files or a model, and so says where numbers come from and not
// what is computed.
bool NamesFiles(std::string_view key, const std::string& value);

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_SETTINGS_CONFIG_DIFF_H_
