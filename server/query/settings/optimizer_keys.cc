#include "server/query/settings/optimizer_keys.h"

#include <algorithm>
#include <vector>

#include "common/text.h"
#include "server/query/settings/dotted.h"

namespace statcollect::query {
namespace {

// Settings of a group without an effect of their own. Those of schedulers act through the learning
// rate and the momentum of each step.
constexpr std::array<std::string_view, 11> kWithoutEffect = {
    "tensors",        "elements", "initial_lr", "foreach",       "fused",       "capturable",
    "differentiable", "max_lr",   "min_lr",     "base_momentum", "max_momentum"};

// State that does not depend on the learning rate and eps.
constexpr std::array<std::string_view, 10> kGradientState = {
    "exp_avg",  "exp_avg_sq", "max_exp_avg_sq", "exp_inf",  "momentum_buffer", "square_avg",
    "grad_avg", "sum",        "step",           "acc_delta"};

template <std::size_t N>
bool Has(const std::array<std::string_view, N>& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

bool IsGroup(std::string_view part) {
  constexpr std::string_view kGroup = "group";
  return part.starts_with(kGroup) &&
         (part.substr(kGroup.size()) == "*" || IsNumber(part.substr(kGroup.size())));
}

// Parts before the group: a model's name, a number of an optimizer.
Group MakeGroup(const std::vector<std::string_view>& before, std::string_view group) {
  Group made{.model = {}, .optimizer = {}, .group = std::string(group.substr(5))};
  for (const std::string_view part : before)
    (IsNumber(part) ? made.optimizer : made.model) = std::string(part);
  return made;
}

// Whether the group of the setting uses Nesterov's momentum.
bool UsesNesterov(std::string_view key, const std::map<std::string, std::string>& config) {
  const auto found = config.find(std::string(key.substr(0, key.rfind('.') + 1)) + "nesterov");
  return found != config.end() && found->second.starts_with("true");
}

}  // namespace

bool IsScalarSetting(std::string_view setting) { return Has(kScalarSettings, setting); }

std::optional<std::string_view> ScalarSettingOf(std::string_view scalar) {
  if (scalar.find("/group") == std::string_view::npos) return std::nullopt;
  for (const std::string_view setting : kScalarSettings) {
    if (ParseOptimizerScalar(scalar, setting)) return setting;
  }
  return std::nullopt;
}

std::optional<Group> ParseOptimizerScalar(std::string_view name, std::string_view setting) {
  std::string dotted(name);
  std::replace(dotted.begin(), dotted.end(), '/', '.');
  auto parts = AllPartsOf(dotted, ".");
  const auto found = std::find(parts.begin(), parts.end(), setting);
  if (found == parts.end() || parts.size() < 2 || !IsGroup(parts.back())) return std::nullopt;
  const std::string group(parts.back());
  parts.pop_back();
  parts.erase(std::find(parts.begin(), parts.end(), setting));
  return MakeGroup(parts, group);
}

std::optional<std::pair<Group, std::string>> ParseOptimizerKey(std::string_view key) {
  auto parts = AllPartsOf(key, ".");
  if (parts.size() < 2 || parts.front() != "optimizer") return std::nullopt;
  const std::string setting(parts.back());
  parts.pop_back();
  parts.erase(parts.begin());
  const bool has_group = !parts.empty() && IsGroup(parts.back());
  if (!has_group && setting != "class" && setting != "groups") return std::nullopt;
  const std::string_view group = has_group ? parts.back() : std::string_view("group");
  if (has_group) parts.pop_back();
  return std::pair(MakeGroup(parts, group), setting);
}

bool IsWithoutEffect(std::string_view setting) { return Has(kWithoutEffect, setting); }

bool ActsInFirstUpdate(std::string_view key, const std::map<std::string, std::string>& a,
                       const std::map<std::string, std::string>& b) {
  const std::string_view setting = key.substr(key.rfind('.') + 1);
  if (setting == "momentum") return UsesNesterov(key, a) || UsesNesterov(key, b);
  return setting != "dampening" && setting != "amsgrad" && setting != "lr_decay";
}

bool EntersState(std::string_view setting, std::string_view state) {
  return (setting != "lr" && setting != "eps") || !Has(kGradientState, state);
}

}  // namespace statcollect::query
