#include "server/query/settings/other_settings.h"

#include <algorithm>
#include <array>

#include "server/query/config_diff.h"

namespace statcollect::query {
namespace {

constexpr std::array<std::string_view, 7> kWithoutEffect = {
    "tensors", "elements", "initial_lr", "foreach", "fused", "capturable", "differentiable"};

// "0.1", "(0.9, 0.999)".
bool IsOfNumbers(std::string_view value) {
  return value.find_first_of("0123456789") != std::string_view::npos &&
         value.find_first_not_of("0123456789.,+-eE()[] ") == std::string_view::npos;
}

}  // namespace

bool IsWithoutEffect(std::string_view optimizer_setting) {
  return std::find(kWithoutEffect.begin(), kWithoutEffect.end(), optimizer_setting) != kWithoutEffect.end();
}

OtherSettings::OtherSettings(const Config& a, const Config& b) {
  for (const ConfigDifference& difference : CompareConfig(a, b)) {
    if (!difference.a || !difference.b) continue;
    if (difference.key.starts_with("module.")) {
      of_modules_a_.emplace(difference.key, *difference.a);
      of_modules_b_.emplace(difference.key, *difference.b);
      continue;
    }
    const auto key = ParseOptimizerKey(difference.key);
    if (!key || key->first.group.empty() || IsWithoutEffect(key->second)) continue;
    if (key->second == "lr" || key->second == "weight_decay") continue;
    if (IsOfNumbers(*difference.a) && IsOfNumbers(*difference.b))
      of_optimizers_.push_back({.group = key->first, .setting = key->second});
  }
}

std::vector<std::string> OtherSettings::OfModule(const std::string& module) const {
  std::vector<std::string> names;
  for (const ChangedSetting& changed : ChangedSettings(of_modules_a_, of_modules_b_, module)) {
    if (IsOfNumbers(changed.a) && IsOfNumbers(changed.b)) names.push_back(changed.setting);
  }
  return names;
}

}  // namespace statcollect::query
