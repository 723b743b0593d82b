#include "server/query/settings/other_settings.h"

#include <algorithm>
#include <array>

#include "server/query/settings/config_diff.h"

namespace statcollect::query {
namespace {

// What a scheduler keeps there acts through the learning rate and the momentum of each step.
constexpr std::array<std::string_view, 11> kWithoutEffect = {
    "tensors",        "elements", "initial_lr", "foreach",       "fused",       "capturable",
    "differentiable", "max_lr",   "min_lr",     "base_momentum", "max_momentum"};

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
    for (const std::string& name : LookupNames(difference.key)) {
      Both& both = of_modules_[name];
      both.a.emplace(difference.key, *difference.a);
      both.b.emplace(difference.key, *difference.b);
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
  const auto add = [&](const std::string& lookup) {
    const auto found = of_modules_.find(lookup);
    if (found == of_modules_.end()) return;
    for (const ChangedSetting& changed : ChangedSettings(found->second.a, found->second.b, module)) {
      if (IsOfNumbers(changed.a) && IsOfNumbers(changed.b)) names.push_back(changed.setting);
    }
  };
  add(module);
  if (const std::string stars = WithStars(module); stars != module) add(stars);
  return names;
}

}  // namespace statcollect::query
