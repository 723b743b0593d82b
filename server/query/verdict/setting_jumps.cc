#include "server/query/verdict/setting_jumps.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "server/query/settings/dotted.h"

namespace statcollect::query {
namespace {

constexpr double kSettingExcess = 5;
constexpr double kStandsOut = 0.5;  // log(observed / expected), inside a module that contains others

bool Differs(const Explained& one) { return one.pair->distance > 0; }

Jump MakeJump(std::span<const Explained> step, std::size_t index) {
  return {
      .index = index, .kind = JumpKind::kSetting, .ratio = RatioOf(step[index]), .excess = kSettingExcess};
}

// The candidate that stands out most, if one stands out at all.
std::optional<std::size_t> MostOf(std::span<const Explained> step,
                                  const std::vector<std::size_t>& candidates) {
  std::optional<std::size_t> most;
  for (const std::size_t i : candidates) {
    const double ratio = RatioOf(step[i]);
    if (ratio > kStandsOut && (!most || ratio > RatioOf(step[*most]))) most = i;
  }
  return most;
}

// Differing records of a module or of what it contains.
struct Inside {
  std::vector<std::size_t> own, contained;
  std::vector<std::size_t> buffers;  // its own
};

class ModuleSettings {
 public:
  ModuleSettings(const OtherSettings& settings, std::span<const Explained> step, bool quiet)
      : settings_(settings), step_(step) {
    const auto first = std::find_if(step.begin(), step.end(), Differs);
    if (quiet && first != step.end()) first_ = static_cast<std::size_t>(first - step.begin());
    for (const Explained& one : step) {
      if (one.pair->loss == nullptr && one.stage == Stage::kForward && one.pair->a.def->depth == 1 &&
          root_.empty())
        root_ = one.pair->a.def->key.name;
    }
    for (std::size_t i = 0; i < step.size(); ++i) {
      if (step[i].pair->loss == nullptr && step[i].stage == Stage::kForward) Add(i);
    }
  }

  std::vector<Jump> Find() const {
    std::vector<Jump> jumps;
    for (const auto& [module, inside] : modules_) {
      for (const std::string& setting : settings_.OfModule(std::string(module))) {
        if (const auto index = Place(inside, setting)) {
          jumps.push_back(MakeJump(step_, *index));
          break;
        }
      }
    }
    return jumps;
  }

 private:
  void Add(std::size_t i) {
    const ActivationDef& def = *step_[i].pair->a.def;
    if (def.key.mode != Mode::kTrain) return;
    const bool differs = Differs(step_[i]);
    if (def.key.kind == Kind::kBuffer) {
      if (differs) modules_[ParentOf(def.key.name)].buffers.push_back(i);
      return;
    }
    Inside& own = modules_[def.key.name];
    if (differs && def.key.kind != Kind::kInput) own.own.push_back(i);
    for (auto outer = ParentOf(def.key.name); !outer.empty(); outer = ParentOf(outer)) {
      if (differs) modules_[outer].contained.push_back(i);
    }
    if (!root_.empty() && def.key.name != root_ && differs) modules_[root_].contained.push_back(i);
  }

  std::optional<std::size_t> Place(const Inside& inside, std::string_view setting) const {
    if (setting == "momentum" && !inside.buffers.empty()) return inside.buffers.front();
    if (inside.contained.empty())
      return inside.own.empty() ? std::nullopt : std::optional(inside.own.front());
    std::vector<std::size_t> all = inside.contained;
    all.insert(all.end(), inside.own.begin(), inside.own.end());
    std::sort(all.begin(), all.end());
    if (const auto most = MostOf(step_, all)) return most;
    return first_ && all.front() == *first_ ? first_ : std::nullopt;
  }

  const OtherSettings& settings_;
  const std::span<const Explained> step_;
  std::optional<std::size_t> first_;  // that differs, if everything before it agrees
  std::string_view root_;             // the model's own name
  std::map<std::string_view, Inside> modules_;
};

bool IsMomentum(std::string_view setting) {
  return setting == "momentum" || setting == "dampening" || setting == "nesterov";
}

// Of the model that the group is named after, else of any.
std::optional<Jump> OfOptimizer(const OtherSettings::OfOptimizer& other, std::span<const Explained> step) {
  const std::string& model = other.group.model;
  const bool named = !model.empty() && model[0] >= 'a' && model[0] <= 'z';
  std::vector<std::size_t> candidates;
  for (std::size_t i = 0; i < step.size(); ++i) {
    if (step[i].stage != Stage::kOptimizer || step[i].pair->loss != nullptr || !Differs(step[i])) continue;
    if (!named || step[i].pair->a.def->key.name.starts_with(model + ".")) candidates.push_back(i);
  }
  if (candidates.empty()) return std::nullopt;
  return MakeJump(step, MostOf(step, candidates).value_or(candidates.front()));
}

}  // namespace

std::vector<Jump> FindSettingJumps(const OtherSettings& settings, std::span<const Explained> step, bool quiet,
                                   bool first_step) {
  std::vector<Jump> jumps;
  if (settings.any_of_modules()) jumps = ModuleSettings(settings, step, quiet).Find();
  for (const OtherSettings::OfOptimizer& other : settings.of_optimizers()) {
    if (first_step && IsMomentum(other.setting)) continue;
    if (const auto jump = OfOptimizer(other, step)) jumps.push_back(*jump);
  }
  return jumps;
}

}  // namespace statcollect::query
