// Names of settings of parameter groups: scalars `lr/group0` and `weight_decay/group0`, and keys
// `optimizer.group0.betas` of the configuration. With several optimizers `lr/1/group0` and
// `optimizer.1.group0.betas`, with several watched models `gen/lr/group0` and `optimizer.gen.group0.betas`.
#ifndef STATCOLLECT_SERVER_QUERY_SETTINGS_OPTIMIZER_KEYS_H_
#define STATCOLLECT_SERVER_QUERY_SETTINGS_OPTIMIZER_KEYS_H_

#include <compare>
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

// Parses "gen/lr/1/group0" for the setting "lr".
std::optional<Group> ParseOptimizerScalar(std::string_view name, std::string_view setting);
// Parses "optimizer.gen.group0.betas" to its group and "betas". The group is empty in "optimizer.class" and
// "optimizer.groups".
std::optional<std::pair<Group, std::string>> ParseOptimizerKey(std::string_view key);

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_SETTINGS_OPTIMIZER_KEYS_H_
