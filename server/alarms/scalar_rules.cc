#include "server/alarms/scalar_rules.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <utility>

#include <fmt/format.h>

#include "common/loss_names.h"
#include "common/names.h"
#include "common/text.h"

namespace statcollect::alarms {
namespace {

constexpr std::size_t kNamesMax = 256;  // of a rank; more are not judged

std::string Lower(std::string_view text) {
  std::string lower(text);
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return lower;
}

Finding About(AlarmRule rule, const ScalarRecord& scalar, std::string text) {
  return {.rule = rule,
          .kind = std::string(Name(rule)),
          .step = scalar.step,
          .subject = scalar.name,
          .text = std::move(text),
          .fields = {{"scalar", scalar.name},
                     {"micro_batch", std::to_string(scalar.micro_batch)},
                     {"value", fmt::format("{:.6g}", Unsigned(scalar.value))}}};
}

Finding ClearedOf(AlarmRule rule, const ScalarRecord& scalar) {
  const char* const how = rule == AlarmRule::kLossNotFinite ? "finite again"
                          : rule == AlarmRule::kLossSpike   ? "back to normal"
                                                            : "rising again";
  Finding finding = About(rule, scalar,
                          fmt::format("'{}' is {} at step {}: {:.6g}", Printable(scalar.name), how,
                                      scalar.step, scalar.value));
  finding.sort = Finding::Sort::kCleared;
  finding.kind = kCleared;
  return finding;
}

}  // namespace

bool IsFoundInf(std::string_view name) { return Lower(name).ends_with("found_inf"); }

void ScalarRules::Add(const ScalarRecord& scalar, std::vector<Finding>* findings) {
  const bool scale = IsLossScale(scalar.name);
  if (!scale && !IsLoss(scalar.name)) return;
  auto found = states_.find(scalar.name);
  if (found == states_.end()) {
    if (states_.size() >= kNamesMax) return;
    found = states_.emplace(scalar.name, State()).first;
  }
  State& state = found->second;
  const std::tuple<std::uint64_t, std::uint32_t> place(scalar.step, scalar.micro_batch);
  if (state.last && place <= *state.last) return;
  state.last = place;
  scale ? AddScale(scalar, &state, findings) : AddLoss(scalar, &state, findings);
}

void ScalarRules::AddLoss(const ScalarRecord& scalar, State* state,
                          std::vector<Finding>* findings) {
  const bool finite = std::isfinite(scalar.value);
  if (settings_.On(AlarmRule::kLossNotFinite) && finite == state->not_finite) {
    state->not_finite = !finite;
    findings->push_back(finite ? ClearedOf(AlarmRule::kLossNotFinite, scalar)
                               : About(AlarmRule::kLossNotFinite, scalar,
                                       fmt::format("'{}' is {} at step {}", Printable(scalar.name),
                                                   Unsigned(scalar.value), scalar.step)));
  }
  if (finite && settings_.On(AlarmRule::kLossSpike)) AddFiniteLoss(scalar, state, findings);
}

void ScalarRules::AddFiniteLoss(const ScalarRecord& scalar, State* state,
                                std::vector<Finding>* findings) {
  SpikeRule& spikes = state->spikes;
  const SpikeRule::Change change = spikes.Add(scalar.value, settings_.LossSpike());
  if (change == SpikeRule::Change::kOver)
    findings->push_back(ClearedOf(AlarmRule::kLossSpike, scalar));
  if (change != SpikeRule::Change::kSpike) return;
  Finding finding = About(
      AlarmRule::kLossSpike, scalar,
      fmt::format("'{}' jumped to {:.6g} at step {}: {:.3g} times its running median {:.6g}",
                  Printable(scalar.name), scalar.value, scalar.step,
                  scalar.value / std::max(std::abs(spikes.median()), 1e-300), spikes.median()));
  finding.fields["median"] = fmt::format("{:.6g}", spikes.median());
  finding.fields["limit"] = fmt::format("{:.6g}", spikes.limit());
  findings->push_back(std::move(finding));
}

void ScalarRules::AddScale(const ScalarRecord& scalar, State* state,
                           std::vector<Finding>* findings) {
  if (!settings_.On(AlarmRule::kLossScaleMin) || !std::isfinite(scalar.value)) return;
  const double before = state->scale.value_or(scalar.value);
  state->falls = scalar.value < before ? state->falls + 1 : 0;
  state->scale = scalar.value;
  state->scale_max = std::max(state->scale_max, scalar.value);
  // A scale that was never above the minimum is a scaler that is switched off.
  const bool at_minimum =
      scalar.value <= settings_.loss_scale_min && state->scale_max > settings_.loss_scale_min;
  const bool falling = state->falls >= settings_.loss_scale_falls;
  if ((at_minimum || falling) && !state->low_scale) {
    state->low_scale = true;
    const std::string text =
        at_minimum ? fmt::format("the loss scale is at its minimum: {:g} at step {}", scalar.value,
                                 scalar.step)
                   : fmt::format("the loss scale fell {} times in a row, to {:g} at step {}",
                                 state->falls, scalar.value, scalar.step);
    findings->push_back(About(AlarmRule::kLossScaleMin, scalar, text));
  } else if (state->low_scale && scalar.value > before) {
    state->low_scale = false;
    findings->push_back(ClearedOf(AlarmRule::kLossScaleMin, scalar));
  }
}

}  // namespace statcollect::alarms
