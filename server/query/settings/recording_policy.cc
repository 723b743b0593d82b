#include "server/query/settings/recording_policy.h"

#include <algorithm>
#include <array>
#include <set>
#include <string_view>
#include <utility>

#include <re2/re2.h>

#include "common/names.h"
#include "common/text.h"
#include "server/query/settings/dotted.h"

namespace statcollect::query {
namespace {

constexpr std::string_view kRecordingPrefix = "recording.";
constexpr char kAgentSteps[] = "recording.agent_steps";  // of init(): of all tensors
// Of the overhead budget, not of a watch.
constexpr std::array<std::string_view, 3> kOfBudget = {
    "recording.overhead", "recording.overhead_measured", "recording.full_steps"};
constexpr char kUnnamed = '+';  // in front of the number of a further watch without a name

// The regular expression of a shell pattern: "blocks.*.ln1", "head?", "blocks.[!0].*".
std::string ExpressionOf(std::string_view pattern) {
  std::string expression;
  for (std::size_t i = 0; i < pattern.size(); ++i) {
    const std::size_t close = pattern[i] == '[' ? pattern.find(']', i + 2) : std::string_view::npos;
    if (pattern[i] == '*') {
      expression += ".*";
    } else if (pattern[i] == '?') {
      expression += '.';
    } else if (close != std::string_view::npos) {
      const bool negated = pattern[i + 1] == '!';
      const std::size_t first = i + (negated ? 2 : 1);
      expression += negated ? "[^" : "[";
      expression += pattern.substr(first, close - first + 1);
      i = close;
    } else {
      expression += RE2::QuoteMeta(pattern.substr(i, 1));
    }
  }
  return expression;
}

class Patterns {
 public:
  explicit Patterns(const std::string& list) {
    for (const std::string_view pattern : ItemsOf(list)) {
      auto compiled = std::make_unique<RE2>(ExpressionOf(pattern), RE2::Quiet);
      unknown_ = unknown_ || !compiled->ok();
      if (compiled->ok()) all_.push_back(std::move(compiled));
    }
  }
  bool unknown() const { return unknown_; }
  bool Match(const std::string& name) const {
    return std::any_of(all_.begin(), all_.end(),
                       [&](const auto& pattern) { return RE2::FullMatch(name, *pattern); });
  }

 private:
  std::vector<std::unique_ptr<RE2>> all_;
  bool unknown_ = false;
};

// Batches and inspected tensors are recorded without a watch; all other kinds by one.
bool IsOfWatch(Kind kind) {
  return IsOfParameter(kind) || kind == Kind::kOutput || kind == Kind::kInput ||
         kind == Kind::kGradOutput || kind == Kind::kGradInput || kind == Kind::kBuffer;
}

}  // namespace

// The options of one call of watch(), as text; those that are not known are absent.
struct RecordingPolicy::Watch {
  std::map<std::string, std::string> options;
  std::optional<Patterns> include, exclude;
  std::optional<StepSet> steps, parameter_steps, updates;

  void Compile() {
    const auto patterns = [&](const char* option) {
      const auto found = options.find(option);
      std::optional<Patterns> compiled;
      if (found != options.end()) compiled.emplace(found->second);
      return compiled && !compiled->unknown() ? std::move(compiled) : std::nullopt;
    };
    const auto set = [&](const char* option) {
      const auto found = options.find(option);
      std::optional<StepSet> parsed;
      if (found == options.end()) return parsed;
      if (auto steps_of = StepSet::Parse(found->second); steps_of.ok())
        parsed = *std::move(steps_of);
      return parsed;
    };
    include = patterns("include");
    exclude = patterns("exclude");
    steps = set("steps");
    parameter_steps = set("parameter_steps");
    updates = set("updates");
  }

  bool Is(const char* option, std::string_view value) const {
    const auto found = options.find(option);
    return found != options.end() && found->second == value;
  }
  std::string Text(const char* option) const {
    return std::string(option) + "=" + options.at(option);
  }

  std::optional<Reason> WhyNot(const TensorDef& def, std::uint64_t step) const {
    const TensorKey& key = def.key;
    const bool of_parameter = IsOfParameter(key.kind) || key.kind == Kind::kBuffer;
    const auto matches = [&](const Patterns& patterns) {
      return patterns.Match(key.name) || (of_parameter && patterns.Match(def.parent));
    };
    if (include && !matches(*include)) return Reason{.text = Text("include")};
    if (exclude && matches(*exclude)) return Reason{.text = Text("exclude")};
    if (const auto kinds = options.find("kinds"); kinds != options.end()) {
      const auto chosen = ItemsOf(kinds->second);
      const bool between = key.kind == Kind::kInput && Is("between", "true");
      if (!between && std::find(chosen.begin(), chosen.end(), Name(key.kind)) == chosen.end())
        return Reason{.text = Text("kinds")};
    }
    if (key.mode == Mode::kInit) return std::nullopt;
    if (key.mode == Mode::kEval && Is("eval", "false")) return Reason{.text = Text("eval")};
    if (steps && !steps->Contains(step)) return Reason{.text = Text("steps"), .of_the_step = true};
    if (!IsOfParameter(key.kind)) return std::nullopt;
    if (Is("optimizer", "false")) return Reason{.text = "no optimizer"};
    if (key.kind == Kind::kOptimizerState && key.output_path == "update") {
      if (options.contains("kinds") && !options.contains("updates"))
        return Reason{.text = "no updates"};
      if (updates && !updates->Contains(step))
        return Reason{.text = Text("updates"), .of_the_step = true};
    }
    if (parameter_steps && !parameter_steps->Contains(step))
      return Reason{.text = Text("parameter_steps"), .of_the_step = true};
    return std::nullopt;
  }
};

RecordingPolicy::RecordingPolicy(const Config& config) : full_(RecordedInFull::Of(config)) {
  if (const auto steps = config.find(kAgentSteps); steps != config.end()) {
    if (auto parsed = StepSet::Parse(steps->second); parsed.ok()) {
      agent_steps_ = *std::move(parsed);
      agent_steps_text_ = "steps=" + steps->second;
    }
  }
  for (auto at = config.lower_bound(std::string(kRecordingPrefix));
       at != config.end() && at->first.starts_with(kRecordingPrefix); ++at) {
    if (at->second.empty() || at->first == kAgentSteps)
      continue;  // empty: withdrawn by a later watch
    if (std::find(kOfBudget.begin(), kOfBudget.end(), at->first) != kOfBudget.end()) continue;
    const std::string rest = at->first.substr(kRecordingPrefix.size());
    const std::size_t dot = rest.rfind('.');
    auto& watch = watches_[dot == std::string::npos ? std::string() : rest.substr(0, dot)];
    if (!watch) watch = std::make_unique<Watch>();
    watch->options.emplace(rest.substr(dot == std::string::npos ? 0 : dot + 1), at->second);
  }
  for (const auto& [name, watch] : watches_) watch->Compile();
}

RecordingPolicy::~RecordingPolicy() = default;
RecordingPolicy::RecordingPolicy(RecordingPolicy&&) noexcept = default;

std::vector<const RecordingPolicy::Watch*> RecordingPolicy::WatchesOf(
    const std::string& name) const {
  std::vector<const Watch*> unnamed;
  for (const auto& [key, watch] : watches_) {
    if (key.empty() || key[0] == kUnnamed) {
      unnamed.push_back(watch.get());
    } else if (name == key || name.starts_with(key + ".")) {
      return {watch.get()};
    }
  }
  return unnamed;
}

std::optional<RecordingPolicy::Reason> RecordingPolicy::WhyNot(const TensorDef& def,
                                                               std::uint64_t step) const {
  if (agent_steps_ && !agent_steps_->Contains(step))
    return Reason{.text = agent_steps_text_, .of_the_step = true};
  const bool in_full = InFull(step) || def.key.kind == Kind::kBatch || def.key.mode == Mode::kInit;
  if (!IsOfWatch(def.key.kind))
    return in_full ? std::nullopt : std::optional(Reason{.text = {}, .of_the_step = true});
  bool steps_asked = false;
  for (const Watch* watch : WatchesOf(def.key.name)) {
    if (auto why = watch->WhyNot(def, step)) return why;
    steps_asked = steps_asked || watch->steps.has_value();
  }
  if (in_full || steps_asked)
    return std::nullopt;  // the steps of a watch are recorded whatever the budget
  return Reason{.text = {}, .of_the_step = true};
}

std::string RecordingPolicy::LeavesOut() const {
  std::set<std::string> options;
  for (const auto& [name, watch] : watches_) {
    if (watch->include) options.insert(watch->Text("include"));
    if (watch->exclude) options.insert(watch->Text("exclude"));
  }
  return Joined(options);
}

}  // namespace statcollect::query
