#include "server/query/settings/config_diff.h"

#include <algorithm>
#include <array>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "common/ascii.h"
#include "common/parse.h"
#include "server/query/settings/module_keys.h"

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

// Whole keys. Most programs do not seed these generators, so they differ between any two launches;
// a known seed is a setting of its own ("random.python.seed"). Two dumps always have different
// paths. What a run measured of its own overhead is not a setting, nor how it was started.
constexpr std::array<std::string_view, 8> kVolatileKeys = {"random.python.state",
                                                           "random.numpy.state",
                                                           "import.path",
                                                           "recording.full_steps",
                                                           "recording.overhead_measured",
                                                           "recording.made_by",
                                                           "recording.command",
                                                           "recording.folder"};
constexpr std::string_view kTorchState = "random.torch.state";
constexpr char kTorchSeed[] = "random.torch.seed";
constexpr std::string_view kNoSeed = "none";

}  // namespace

bool IsVolatileSetting(const std::string& key) {
  if (key.starts_with(kModuleOf)) return true;  // names, and no settings
  if (std::find(kVolatileKeys.begin(), kVolatileKeys.end(), key) != kVolatileKeys.end())
    return true;
  const std::string leaf = ascii::Lower(key.substr(key.rfind('.') + 1));
  return std::find(kVolatile.begin(), kVolatile.end(), leaf) != kVolatile.end();
}

bool IsCompared(const std::string& key, const std::map<std::string, std::string>& a,
                const std::map<std::string, std::string>& b) {
  if (IsVolatileSetting(key)) return false;
  if (key != kTorchState) return true;
  const auto seed_a = a.find(kTorchSeed), seed_b = b.find(kTorchSeed);
  return a.contains(key) && b.contains(key) && seed_a != a.end() && seed_b != b.end() &&
         seed_a->second == seed_b->second && seed_a->second != kNoSeed;
}

bool NamesFiles(std::string_view key, const std::string& value) {
  const bool code = value.starts_with("function ");  // that replaces a module's own
  return key.ends_with("name_or_path") || (!code && value.find('/') != std::string::npos);
}

bool SameSetting(const std::string& a, const std::string& b) {
  if (a == b) return true;
  // Plain numbers only: no blanks, no hexadecimal commits.
  const auto number_a = ParseNumber<double>(a), number_b = ParseNumber<double>(b);
  if (number_a && number_b) return *number_a == *number_b;
  const std::string lower = ascii::Lower(a);
  return (lower == "true" || lower == "false") && lower == ascii::Lower(b);
}

std::optional<std::string> Implied(const std::string& key,
                                   const std::map<std::string, std::string>& config) {
  constexpr std::string_view kModule = "module.", kMode = ".training";
  if (!key.starts_with(kModule) || !key.ends_with(kMode)) return std::nullopt;
  const std::string module = key.substr(0, key.size() - kMode.size());
  if (!config.contains(module + ".class")) return std::nullopt;  // the run has no such module
  // Of a watch with a name, its settings begin with that.
  const std::string first =
      module.substr(kModule.size(), module.find('.', kModule.size()) - kModule.size());
  for (const std::string& model : {"model." + first + ".training", std::string("model.training")}) {
    if (const auto found = config.find(model); found != config.end()) return found->second;
  }
  return std::nullopt;
}

std::vector<ConfigDifference> CompareConfig(const std::map<std::string, std::string>& a,
                                            const std::map<std::string, std::string>& b) {
  std::set<std::string> keys;
  for (const auto& [key, value] : a) keys.insert(key);
  for (const auto& [key, value] : b) keys.insert(key);
  std::vector<ConfigDifference> differences;
  for (const std::string& key : keys) {
    if (!IsCompared(key, a, b)) continue;
    ConfigDifference difference{.key = key, .a = {}, .b = {}};
    for (const auto& [config, value] :
         {std::pair(&a, &difference.a), std::pair(&b, &difference.b)}) {
      const auto found = config->find(key);
      *value = found != config->end() ? std::optional(found->second) : Implied(key, *config);
    }
    if (!difference.a || !difference.b || !SameSetting(*difference.a, *difference.b))
      differences.push_back(std::move(difference));
  }
  return differences;
}

}  // namespace statcollect::query
