#include "server/alarms/state_loader.h"

#include <algorithm>
#include <string>
#include <vector>

#include "common/names.h"
#include "common/saturating.h"
#include "server/alarms/event_writer.h"

namespace statcollect::alarms {
namespace {

constexpr std::uint64_t kReplayStepsMax = 2000;  // that are not known to have been judged

std::uint64_t EventNumber(const EventRecord& event) {
  const auto field = [&](const char* name) {
    const auto found = event.fields.find(name);
    return found == event.fields.end() ? std::string() : found->second;
  };
  Finding finding{.kind = event.kind, .subject = field("subject"), .text = {}, .fields = {}};
  const std::string rule = field("rule");
  for (std::size_t i = 0; i < kAlarmRuleCount; ++i) {
    if (kAlarmRuleNames[i] == rule) finding.rule = static_cast<AlarmRule>(i);
  }
  return alarms::EventNumber(finding);
}

// Scalars and ends of steps, handed to the rules up to where their statistics have come.
class Beside {
 public:
  Beside(std::vector<ScalarRecord> scalars, std::vector<StepRecord> ends, RankRules& rules)
      : scalars_(std::move(scalars)), ends_(std::move(ends)), rules_(rules) {}

  // A scaler's word about a step may have come with a later one.
  void AddBefore(std::uint64_t step) {
    for (; end_ < ends_.size() && ends_[end_].step < step; ++end_)
      rules_.AddStepEnd(ends_[end_].step);
    AddScalars(step);
  }
  void AddRest() {
    AddScalars(~std::uint64_t{0});
    for (; end_ < ends_.size(); ++end_) rules_.AddStepEnd(ends_[end_].step);
  }

 private:
  void AddScalars(std::uint64_t until) {
    for (; scalar_ < scalars_.size() && scalars_[scalar_].step <= until; ++scalar_)
      rules_.AddScalar(scalars_[scalar_]);
  }

  const std::vector<ScalarRecord> scalars_;
  const std::vector<StepRecord> ends_;
  RankRules& rules_;
  std::size_t scalar_ = 0, end_ = 0;
};

}  // namespace

Result<bool> StateLoader::Load(const AttemptRank& place, RankState* state,
                               std::optional<StepAndRank>* nonfinite) {
  STATCOLLECT_ASSIGN_OR_RETURN(auto metas, store_.Ranks(place.first));
  const auto meta = metas.find(place.second);
  if (meta == metas.end()) return Status(Code::kNotFound, "it has been removed");
  STATCOLLECT_RETURN_IF_ERROR(LoadEvents(place, state, nonfinite));
  STATCOLLECT_RETURN_IF_ERROR(Define(place, state->rules.get()));
  if (!meta->second.last_step) return false;
  return Replay(place, *meta->second.last_step, state);
}

Status StateLoader::LoadEvents(const AttemptRank& place, RankState* state,
                               std::optional<StepAndRank>* nonfinite) {
  STATCOLLECT_ASSIGN_OR_RETURN(auto events, store_.Events(place.first, place.second));
  for (const EventRecord& event : events) {
    if (!event.from_collector) continue;
    state->stored.insert(EventId(EventNumber(event), event.step));
    if (event.kind != Name(AlarmRule::kNanFirstSeen)) continue;
    state->rules->SetNonfiniteSeen();
    const StepAndRank here(event.step, place.second);
    *nonfinite = std::min(nonfinite->value_or(here), here);
  }
  return Status::Ok();
}

// The step at which to begin so that the rules' windows are full at `judged`.
Result<std::uint64_t> StateLoader::ReplayFrom(const AttemptRank& place, std::uint64_t judged) {
  const std::uint64_t wanted =
      kAlarmWindowMax + std::max(settings_.vanishing_steps, settings_.dead_relu_steps);
  for (std::uint64_t back = SaturatingMul(wanted, 2);; back = SaturatingMul(back, 16)) {
    const std::uint64_t first = SaturatingSub(judged, back);
    STATCOLLECT_ASSIGN_OR_RETURN(
        auto steps, store_.StatSteps(place.first, place.second, {.first = first, .last = judged}));
    if (steps.size() >= wanted) return steps[steps.size() - wanted];
    if (first == 0 || back > kReplayStepsMax * 256) return steps.empty() ? first : steps.front();
  }
}

Result<bool> StateLoader::Replay(const AttemptRank& place, std::uint64_t last_step,
                                 RankState* state) {
  const std::uint64_t unknown = SaturatingSub(last_step, kReplayStepsMax);
  STATCOLLECT_ASSIGN_OR_RETURN(auto first,
                               ReplayFrom(place, state->silent_until.value_or(unknown)));
  const StepBounds bounds{.first = first};
  STATCOLLECT_ASSIGN_OR_RETURN(auto scalars, store_.Scalars(place.first, place.second, bounds));
  STATCOLLECT_ASSIGN_OR_RETURN(auto ends, store_.StepEnds(place.first, place.second, bounds));
  RankRules& rules = *state->rules;
  Beside beside(std::move(scalars), std::move(ends), rules);
  const auto scan = store_.ScanStats(place.first, place.second, bounds);
  StatColumns columns;
  while (scan->NextHead()) {
    if (must_end_())
      return Status(Code::kCancelled,
                    "the collector is stopping; it is judged after the next start");
    const std::uint64_t step = scan->head().step;
    if (!scan->Load(/*sketches=*/settings_.On(AlarmRule::kUpdateNorm), &columns)) break;
    beside.AddBefore(step);
    columns.step.assign(columns.size(), step);
    if (!rules.Knows(columns)) STATCOLLECT_RETURN_IF_ERROR(Define(place, &rules));
    if (!rules.Knows(columns)) break;  // the definitions come with a batch that was stored just now
    rules.AddStats(columns);
    if (rules.bytes() > settings_.memory_bytes_max) return false;
  }
  STATCOLLECT_RETURN_IF_ERROR(scan->status());
  beside.AddRest();
  return true;
}

Status StateLoader::Define(const AttemptRank& place, RankRules* rules) {
  STATCOLLECT_ASSIGN_OR_RETURN(const auto read, store_.Definitions(place.first, place.second));
  rules->Define(read->activations, read->layouts);
  return Status::Ok();
}

}  // namespace statcollect::alarms
