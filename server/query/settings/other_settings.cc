#include "server/query/settings/other_settings.h"

#include <algorithm>
#include <array>

#include "server/query/settings/config_diff.h"

namespace statcollect::query {
namespace {

// Switches of torch's optimizers that change what is computed, not only how.
constexpr std::array<std::string_view, 5> kSwitches = {"nesterov", "amsgrad", "maximize",
                                                       "centered", "decoupled_weight_decay"};

// "0.1", "(0.9, 0.999)".
bool IsOfNumbers(std::string_view value) {
  return value.find_first_of("0123456789") != std::string_view::npos &&
         value.find_first_not_of("0123456789.,+-eE()[] ") == std::string_view::npos;
}

}  // namespace

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
    if (IsScalarSetting(key->second)) continue;
    const bool is_switch =
        std::find(kSwitches.begin(), kSwitches.end(), key->second) != kSwitches.end();
    if (!is_switch && !(IsOfNumbers(*difference.a) && IsOfNumbers(*difference.b))) continue;
    of_optimizers_.push_back({.group = key->first,
                              .setting = key->second,
                              .in_first_update = ActsInFirstUpdate(difference.key, a, b)});
  }
}

std::vector<std::string> OtherSettings::OfModule(const std::string& module) const {
  std::vector<std::string> names;
  const auto add = [&](const std::string& lookup) {
    const auto found = of_modules_.find(lookup);
    if (found == of_modules_.end()) return;
    for (const ChangedSetting& changed :
         ChangedSettings(found->second.a, found->second.b, module)) {
      if (IsOfNumbers(changed.a) && IsOfNumbers(changed.b)) names.push_back(changed.setting);
    }
  };
  add(module);
  if (const std::string stars = WithStars(module); stars != module) add(stars);
  return names;
}

}  // namespace statcollect::query
