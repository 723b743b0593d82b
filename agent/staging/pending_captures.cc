#include "agent/staging/pending_captures.h"

#include <algorithm>
#include <map>
#include <utility>

#include "common/edit_distance.h"
#include "common/names.h"

namespace statcollect {

PendingCaptures::PendingCaptures(StagingState* state, const std::vector<CaptureSpec>& specs)
    : state_(*state) {
  for (const CaptureSpec& spec : specs) pending_.push_back({.spec = spec, .request = {}});
  BeginStepLocked();  // nobody else has it yet
}

void PendingCaptures::Add(CaptureSpec spec, const std::string& request) {
  {
    MutexLock lock(state_.mutex);
    if (!request.empty() && !requests_.insert(request).second) return;
    Pending pending{.spec = std::move(spec), .request = request};
    if (pending.spec.steps.last() < state_.step) {
      MissLocked(pending, "in step " + pending.spec.steps_text +
                              ": it has passed, this rank is at step " +
                              std::to_string(state_.step));
    } else if (pending_.size() >= kCaptureSpecsMax) {
      MissLocked(pending, "in step " + pending.spec.steps_text + ": " +
                              std::to_string(kCaptureSpecsMax) + " captures wait already");
    } else {
      pending_.push_back(std::move(pending));
      BeginStepLocked();
      return;
    }
  }
  state_.batcher->Wake();
}

void PendingCaptures::Miss(std::uint64_t step, const std::string& requests,
                           const std::string& activation, const std::string& why) {
  {
    MutexLock lock(state_.mutex);
    MissLocked(step, requests, activation, why);
  }
  state_.batcher->Wake();
}

void PendingCaptures::Miss(const CaptureTarget& target, const std::string& why) {
  const TensorDef def =
      state_.definitions.Activations(target.activation, target.activation).front();
  Miss(target.step, target.requests, def.key.name,
       "in step " + std::to_string(target.step) + ": " + why);
}

void PendingCaptures::End() {
  MutexLock lock(state_.mutex);
  for (const Pending& pending : std::exchange(pending_, {})) {
    if (!pending.matched) {
      MissLocked(pending, "in step " + pending.spec.steps_text + ": the run ended at step " +
                              std::to_string(state_.step));
    }
  }
  active_ = false;
}

std::optional<CaptureTarget> PendingCaptures::MatchLocked(const TensorKey& key) {
  state_.mutex.AssertHeld();
  std::optional<CaptureTarget> target;
  for (Pending& pending : pending_) {
    if (!pending.spec.steps.Contains(state_.step) || !pending.spec.Matches(key)) continue;
    pending.matched = true;
    if (!target) target = CaptureTarget{.step = state_.step, .requests = {}};
    target->bytes_max = std::max(target->bytes_max, pending.spec.bytes_max);
    if (!pending.request.empty())
      target->requests += (target->requests.empty() ? "" : ",") + pending.request;
  }
  return target;
}

void PendingCaptures::BeginStepLocked() {
  state_.mutex.AssertHeld();
  std::erase_if(pending_, [this](const Pending& pending) STATCOLLECT_REQUIRES(state_.mutex) {
    if (pending.spec.steps.last() >= state_.step) return false;
    if (!pending.matched) {
      MissLocked(
          pending,
          "was not observed in step " + pending.spec.steps_text + NearestLocked(pending.spec) +
              "; is it watched, and is the step recorded (statctl set-steps, the steps of watch)?");
    }
    return true;
  });
  active_ = std::any_of(
      pending_.begin(), pending_.end(),
      [step = state_.step](const Pending& pending) { return pending.spec.steps.Contains(step); });
}

// " (did you mean 'fc2'?)", if another observed name is close to one that never was.
std::string PendingCaptures::NearestLocked(const CaptureSpec& spec) const {
  constexpr std::size_t kCompared = 1024;  // bounds the time with the mutex held
  const std::set<std::string> names = state_.definitions.Names(kCompared);
  if (spec.pattern || names.contains(spec.activation)) return {};
  const std::string nearest = NearestName(spec.activation, {names.begin(), names.end()});
  return nearest.empty() ? std::string() : " (did you mean '" + Printable(nearest) + "'?)";
}

void PendingCaptures::MissLocked(std::uint64_t step, const std::string& requests,
                                 const std::string& activation, const std::string& why) {
  state_.mutex.AssertHeld();
  std::map<std::string, std::string> fields = {{"activation", activation}, {"reason", why}};
  if (!requests.empty()) fields["request"] = requests;
  state_.PushLocked(EventRecord{.kind = "capture_missed",
                                .step = std::min(step, state_.step),
                                .unix_nanos = state_.clock->UnixNanos(),
                                .text = "not captured: " + activation + " " + why,
                                .fields = std::move(fields)});
}

void PendingCaptures::MissLocked(const Pending& pending, const std::string& why) {
  state_.mutex.AssertHeld();
  MissLocked(pending.spec.steps.last(), pending.request, pending.spec.Describe(), why);
}

}  // namespace statcollect
