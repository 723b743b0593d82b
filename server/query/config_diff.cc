#include "server/query/config_diff.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <set>
#include <string_view>

namespace statcollect::query {
namespace {

// Last component of a key, in lower case.
constexpr std::array<std::string_view, 14> kVolatile = {"pid",
                                                        "ppid",
                                                        "launch",
                                                        "launch_id",
                                                        "run",
                                                        "run_id",
                                                        "session",
                                                        "session_id",
                                                        "start_unix_nanos",
                                                        "start_time",
                                                        "timestamp",
                                                        "master_port",
                                                        "torchelastic_run_id",
                                                        "statagent_run"};

bool IsVolatile(const std::string& key) {
  std::string leaf = key.substr(key.rfind('.') + 1);
  std::transform(leaf.begin(), leaf.end(), leaf.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return std::find(kVolatile.begin(), kVolatile.end(), leaf) != kVolatile.end();
}

}  // namespace

std::vector<ConfigDifference> CompareConfig(const std::map<std::string, std::string>& a,
                                            const std::map<std::string, std::string>& b) {
  std::set<std::string> keys;
  for (const auto& [key, value] : a) keys.insert(key);
  for (const auto& [key, value] : b) keys.insert(key);
  std::vector<ConfigDifference> differences;
  for (const std::string& key : keys) {
    if (IsVolatile(key)) continue;
    ConfigDifference difference{.key = key, .a = {}, .b = {}};
    if (const auto found = a.find(key); found != a.end()) difference.a = found->second;
    if (const auto found = b.find(key); found != b.end()) difference.b = found->second;
    if (difference.a != difference.b) differences.push_back(std::move(difference));
  }
  return differences;
}

}  // namespace statcollect::query
