#include "server/query/verdict/setting_jumps.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "server/query/settings/dotted.h"
#include "server/query/verdict/constants.h"

namespace statcollect::query {
namespace {

bool HasDistance(const Explained& one) { return one.pair->distance > 0; }

// The candidate that stands out most, if one stands out at all.
std::optional<std::size_t> MostOf(std::span<const Explained> step,
                                  const std::vector<std::size_t>& candidates) {
  std::optional<std::size_t> most;
  for (const std::size_t i : candidates) {
    const double ratio = RatioOf(step[i]);
    if (ratio > setting::kStandsOut && (!most || ratio > RatioOf(step[*most]))) most = i;
  }
  return most;
}

// A module with settings that differ: which records of it and of what it contains do.
struct Affected {
  std::vector<std::string> settings;
  std::vector<std::size_t> own, contained;
  std::vector<std::size_t> buffers;  // its own
};

class ModuleSettings {
 public:
  // `step`: of which the forward records are looked at. Cost: one look-up by name for each record
  // that differs, and more for the first of a module.
  ModuleSettings(const OtherSettings& settings, std::span<const Explained> step, bool quiet)
      : settings_(settings), step_(step) {
    const auto first = std::find_if(step.begin(), step.end(), HasDistance);
    if (quiet && first != step.end()) first_ = static_cast<std::size_t>(first - step.begin());
    for (const Explained& one : step) {
      if (!IsForward(one) || one.pair->a.def->depth != 1) continue;
      if (models_.empty()) model_ = one.pair->a.def->key.name;
      models_.insert(one.pair->a.def->key.name);
    }
    for (std::size_t i = 0; i < step.size(); ++i) {
      if (IsForward(step[i]) && HasDistance(step[i])) Add(i);
    }
  }

  std::vector<Jump> Find() const {
    std::vector<Jump> jumps;
    for (const auto& [module, affected] : affected_) {
      for (const std::string& setting : affected.settings) {
        const auto index = IndexOf(affected, setting);
        if (!index) continue;
        jumps.push_back(MakeSettingJump(step_, *index));
        jumps.back().of_outer = step_[*index].pair->a.def->key.name != module && !IsBuffer(*index);
        break;
      }
    }
    return jumps;
  }

 private:
  struct Scopes {
    Affected* own = nullptr;
    std::vector<Affected*> outer;
  };

  static bool IsForward(const Explained& one) {
    return one.pair->loss == nullptr && one.stage == Stage::kForward;
  }
  bool IsBuffer(std::size_t i) const { return step_[i].pair->a.def->key.kind == Kind::kBuffer; }

  void Add(std::size_t i) {
    const TensorKey& key = step_[i].pair->a.def->key;
    if (key.mode != Mode::kTrain) return;
    if (key.kind == Kind::kBuffer) {
      if (Affected* owner = Find(ParentOf(key.name))) owner->buffers.push_back(i);
      return;
    }
    const Scopes& scopes = ScopesOf(key.name);
    if (scopes.own != nullptr && key.kind != Kind::kInput) scopes.own->own.push_back(i);
    for (Affected* outer : scopes.outer) outer->contained.push_back(i);
  }

  const Scopes& ScopesOf(std::string_view module) {
    const auto [entry, added] = scopes_.try_emplace(module);
    Scopes& scopes = entry->second;
    if (!added) return scopes;
    scopes.own = Find(module);
    std::string_view outermost = module;
    for (auto outer = ParentOf(module); !outer.empty(); outer = ParentOf(outer)) {
      if (Affected* affected = Find(outer)) scopes.outer.push_back(affected);
      outermost = outer;
    }
    // Modules outside of all named models belong to the first model, whose name is its class.
    if (model_.empty() || models_.contains(outermost)) return scopes;
    if (Affected* affected = Find(model_)) scopes.outer.push_back(affected);
    return scopes;
  }

  // Null: none of its settings differ.
  Affected* Find(std::string_view module) {
    const auto [entry, added] = known_.try_emplace(module, nullptr);
    if (!added) return entry->second;
    auto settings = settings_.OfModule(std::string(module));
    if (!settings.empty()) {
      entry->second = &affected_[module];
      entry->second->settings = std::move(settings);
    }
    return entry->second;
  }

  std::optional<std::size_t> IndexOf(const Affected& affected, std::string_view setting) const {
    if (setting == "momentum" && !affected.buffers.empty()) return affected.buffers.front();
    if (affected.contained.empty()) {
      // The momentum of running statistics does not enter what is computed in training.
      if (setting == "momentum" || affected.own.empty()) return std::nullopt;
      return affected.own.front();
    }
    std::vector<std::size_t> all = affected.contained;
    all.insert(all.end(), affected.own.begin(), affected.own.end());
    std::sort(all.begin(), all.end());
    if (const auto most = MostOf(step_, all)) return most;
    return first_ && all.front() == *first_ ? first_ : std::nullopt;
  }

  const OtherSettings& settings_;
  const std::span<const Explained> step_;
  std::optional<std::size_t> first_;   // that differs, if everything before it agrees
  std::set<std::string_view> models_;  // names of outermost modules
  std::string_view model_;             // the first of them
  std::map<std::string_view, Affected> affected_;
  std::unordered_map<std::string_view, Affected*> known_;
  std::unordered_map<std::string_view, Scopes> scopes_;
};

// Only results of the model that the group is named after count; without such a model, all do.
std::optional<Jump> OfOptimizer(const OtherSettings::OfOptimizer& other,
                                std::span<const Explained> step) {
  const std::string prefix = other.group.model + ".";
  const auto is_result = [&](const Explained& one) {
    if (one.stage != Stage::kOptimizer || one.pair->loss != nullptr) return false;
    const TensorKey& key = one.pair->a.def->key;
    return key.kind != Kind::kOptimizerState || EntersState(other.setting, key.output_path);
  };
  const auto in_model = [&](const Explained& one) {
    return one.pair->a.def->key.name.starts_with(prefix);
  };
  // Names of parameters do not begin with a class.
  const bool is_class =
      !other.group.model.empty() && other.group.model[0] >= 'A' && other.group.model[0] <= 'Z';
  const bool named = !other.group.model.empty() &&
                     (!is_class || std::any_of(step.begin(), step.end(), [&](const Explained& one) {
                       return is_result(one) && in_model(one);
                     }));
  std::vector<std::size_t> candidates;
  for (std::size_t i = 0; i < step.size(); ++i) {
    const bool differs = is_result(step[i]) && HasDistance(step[i]) && step[i].observed > 0;
    if (differs && (!named || in_model(step[i]))) candidates.push_back(i);
  }
  if (candidates.empty()) return std::nullopt;
  return MakeSettingJump(step, FirstThatStandsOut(step, candidates).value_or(candidates.front()));
}

}  // namespace

std::optional<std::size_t> FirstThatStandsOut(std::span<const Explained> step,
                                              const std::vector<std::size_t>& candidates) {
  const auto most = MostOf(step, candidates);
  if (!most) return std::nullopt;
  const double enough = std::max(setting::kStandsOut, setting::kAboutAsMuch * RatioOf(step[*most]));
  return *std::find_if(candidates.begin(), candidates.end(),
                       [&](std::size_t i) { return RatioOf(step[i]) >= enough; });
}

Jump MakeSettingJump(std::span<const Explained> step, std::size_t index) {
  return {.index = index,
          .kind = JumpKind::kSetting,
          .ratio = RatioOf(step[index]),
          .excess = kExactExcess};
}

std::vector<Jump> FindSettingJumps(const OtherSettings& settings, std::span<const Explained> step,
                                   bool quiet, bool first_step) {
  std::vector<Jump> jumps;
  if (settings.any_of_modules()) jumps = ModuleSettings(settings, step, quiet).Find();
  for (const OtherSettings::OfOptimizer& other : settings.of_optimizers()) {
    if (first_step && !other.in_first_update) continue;
    if (const auto jump = OfOptimizer(other, step)) jumps.push_back(*jump);
  }
  return jumps;
}

}  // namespace statcollect::query
