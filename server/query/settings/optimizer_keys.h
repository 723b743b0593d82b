// Names of settings of parameter groups: scalars `lr/group0` and `weight_decay/group0`, and keys
// `optimizer.group0.betas` of the configuration. With several optimizers `lr/1/group0` and
// `optimizer.1.group0.betas`, with several watched models `gen/lr/group0` and
// `optimizer.gen.group0.betas`.
#ifndef STATCOLLECT_SERVER_QUERY_SETTINGS_OPTIMIZER_KEYS_H_
#define STATCOLLECT_SERVER_QUERY_SETTINGS_OPTIMIZER_KEYS_H_

#include <array>
#include <compare>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace statcollect::query {

// A parameter group, its optimizer and model.
struct Group {
  std::string model, optimizer, group;
  auto operator<=>(const Group&) const = default;
};

// Settings that the agent records as scalars: the learning rate in every update, the weight decay
// in the first one and whenever it has changed.
inline constexpr std::array<std::string_view, 2> kScalarSettings = {"lr", "weight_decay"};
bool IsScalarSetting(std::string_view setting);
inline constexpr std::string_view kTensorsOfGroup = "tensors";  // how many parameters a group has
// "lr" of "gen/lr/1/group0"; empty for any other scalar.
std::optional<std::string_view> ScalarSettingOf(std::string_view scalar);
// Parses "gen/lr/1/group0" for the setting "lr".
std::optional<Group> ParseOptimizerScalar(std::string_view name, std::string_view setting);
// Parses "optimizer.gen.group0.betas" to its group and "betas". The group is empty in
// "optimizer.class" and "optimizer.groups".
std::optional<std::pair<Group, std::string>> ParseOptimizerKey(std::string_view key);

// Whether the setting changes only how an optimizer computes, or belongs to a scheduler: "foreach",
// "max_lr".
bool IsWithoutEffect(std::string_view setting);
// Whether the setting can have an effect in a run's first update, when there is no momentum yet
// (Nesterov's adds the gradient immediately). `key`: of the setting; `a`, `b`: both configurations.
bool ActsInFirstUpdate(std::string_view key, const std::map<std::string, std::string>& a,
                       const std::map<std::string, std::string>& b);
// Whether the optimizer's state of that name depends on the setting. "exp_avg" depends neither on
// the learning rate nor on eps.
bool EntersState(std::string_view setting, std::string_view state);

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_SETTINGS_OPTIMIZER_KEYS_H_
