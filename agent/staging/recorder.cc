#include "agent/staging/recorder.h"

#include <algorithm>
#include <new>
#include <utility>

#include "common/names.h"

namespace statcollect {
namespace {

Status DuplicateError(const TensorKey& key, std::uint64_t step) {
  return Status(
      Code::kInvalidArgument,
      "observe '" + Printable(key.name) + "' (" + std::string(Name(key.kind)) + ", micro-batch " +
          std::to_string(key.micro_batch) + ", call " + std::to_string(key.call) +
          "): it was already observed in step " + std::to_string(step) +
          "; expected once a step; end the step, or give the observation another call index");
}

// The counts from the first to the last that is not 0.
void Trim(const ExponentCounts& counts, ExponentRecord* record) {
  const auto is_some = [](std::uint64_t count) { return count != 0; };
  const auto first = std::find_if(counts.begin(), counts.end(), is_some);
  if (first == counts.end()) return;
  const auto last = std::find_if(counts.rbegin(), counts.rend(), is_some).base();
  record->lowest = kExponentLowest + static_cast<std::int32_t>(first - counts.begin());
  record->counts.assign(first, last);
}

}  // namespace

Recorder::Recorder(const Options& options, const Clock* clock, Ledger* ledger, Waker* batcher)
    : sketch_(options.sketch),
      samples_(options.samples),
      exponents_(options.exponents),
      ring_(options.ring),
      captures_(ledger),
      state_(options.slots, options.sketch, options.samples, clock, ledger, batcher),
      pending_captures_(&state_, options.captures),
      graphs_(&state_),
      log_(&state_),
      steps_(options.steps) {}

Result<std::uint32_t> Recorder::Intern(const IdentityView& identity) {
  MutexLock lock(state_.mutex);
  return state_.registry.Intern(identity);
}

Status Recorder::Begin(std::uint32_t handle, DType dtype, std::span<const std::int64_t> shape,
                       Slot** slot, std::optional<CaptureTarget>* capture,
                       const PlacementView* placement) {
  bool wake = false;
  {
    MutexLock lock(state_.mutex);
    const std::uint64_t before = state_.ring.tail();
    STATCOLLECT_RETURN_IF_ERROR(BeginLocked(handle, dtype, shape, slot, capture, placement));
    wake = *slot != nullptr && before == state_.ring.head();
  }
  if (wake) state_.batcher->Wake();
  return Status::Ok();
}

Status Recorder::Begin(const IdentityView& identity, bool next_call, DType dtype,
                       std::span<const std::int64_t> shape, Slot** slot,
                       std::optional<CaptureTarget>* capture, const PlacementView* placement) {
  *slot = nullptr;
  bool wake = false;
  {
    MutexLock lock(state_.mutex);
    if (!WantsLocked(identity.mode) && !pending_captures_.active_locked()) return Status::Ok();
    const Result<std::uint32_t> handle = next_call
                                             ? state_.registry.InternNextCall(identity, state_.step)
                                             : state_.registry.Intern(identity);
    if (!handle.ok()) {
      if (handle.status().code() != Code::kResourceExhausted) return handle.status();
      state_.ledger->ProduceDropped(kDropTableFull);
      return Status::Ok();
    }
    const std::uint64_t before = state_.ring.tail();
    STATCOLLECT_RETURN_IF_ERROR(BeginLocked(*handle, dtype, shape, slot, capture, placement));
    wake = *slot != nullptr && before == state_.ring.head();
  }
  if (wake) state_.batcher->Wake();
  return Status::Ok();
}

Status Recorder::BeginLocked(std::uint32_t handle, DType dtype, std::span<const std::int64_t> shape,
                             Slot** slot, std::optional<CaptureTarget>* capture,
                             const PlacementView* placement) {
  *slot = nullptr;
  Registry::Activation* activation = state_.registry.Find(handle);
  if (activation == nullptr) return Registry::UnknownHandle(handle);
  const bool wanted = WantsLocked(activation->def.key.mode);
  if (!wanted && !pending_captures_.active_locked()) return Status::Ok();
  if (activation->next_step > state_.step) return DuplicateError(activation->def.key, state_.step);
  std::uint32_t layout =
      state_.registry.FindLayout(dtype, shape, placement, activation->last_layout);
  if (layout == Registry::kNone)
    STATCOLLECT_RETURN_IF_ERROR(Registry::CheckNewLayout(*activation, shape, placement));
  std::optional<CaptureTarget> target;
  if (capture != nullptr && state_.refused.empty())
    target = TargetLocked(activation->def.key, wanted);
  if (!wanted && !target) return Status::Ok();
  activation->next_step = state_.step + 1;
  state_.NoteMicroBatchLocked(activation->def.key.micro_batch);
  const std::uint32_t order = state_.order++;
  if (!state_.refused.empty()) {
    state_.ledger->ProduceDropped(state_.refused);
    return Status::Ok();
  }
  if (layout == Registry::kNone) layout = state_.registry.AddLayout(dtype, shape, placement);
  if (layout == Registry::kNone) {
    if (target && target->send) {
      pending_captures_.MissLocked(
          state_.step, target->requests, activation->def.key.name,
          "in step " + std::to_string(state_.step) + ": there are too many different shapes");
    }
    state_.ledger->ProduceDropped(kDropTableFull);
    return Status::Ok();
  }
  activation->last_layout = layout;
  const std::uint32_t definition =
      state_.registry.Define(activation);  // the last thing that may allocate
  if (target) {
    target->activation = definition;
    target->layout = layout;
    *capture = *std::move(target);
    if (!wanted) return Status::Ok();
  }
  Slot* reserved = state_.TryReserveLocked();
  if (reserved == nullptr) {
    state_.ledger->ProduceDropped(kDropBufferFull);
    return Status::Ok();
  }
  state_.ledger->Produce();
  reserved->activation = definition;
  reserved->layout = layout;
  reserved->step = state_.step;
  reserved->order = order;
  reserved->sample_count = 0;
  if (!exponents_.empty()) WantExponentsLocked(activation->def.key, reserved);
  *slot = reserved;
  return Status::Ok();
}

std::optional<CaptureTarget> Recorder::TargetLocked(const TensorKey& key, bool recorded) {
  std::optional<CaptureTarget> target;
  if (pending_captures_.active_locked()) target = pending_captures_.MatchLocked(key);
  if (ring_ == nullptr || !recorded || !ring_->Wants(key, state_.step)) return target;
  if (!target) target = CaptureTarget{.step = state_.step, .send = false};
  target->ring = true;
  return target;
}

void Recorder::WantExponentsLocked(const TensorKey& key, Slot* slot) {
  const bool wanted = std::any_of(exponents_.begin(), exponents_.end(),
                                  [&, step = state_.step](const ExponentSpec& spec) {
                                    return spec.steps.Contains(step) && spec.Matches(key);
                                  });
  if (!wanted) return;
  slot->exponents.reset(new (std::nothrow) ExponentCounts());
  if (slot->exponents == nullptr) {
    state_.ledger->ProduceDropped(kDropBufferFull);
  } else {
    state_.ledger->Produce();  // now, with its tensor: what comes of a device late belongs to what
                               // was handed over
  }
}

void Recorder::Commit(Slot* slot) {
  const std::unique_ptr<ExponentCounts> exponents = std::move(slot->exponents);
  ExponentRecord record{.step = slot->step, .activation = slot->activation, .layout = slot->layout};
  if (!state_.ring.Commit(slot)) {
    state_.ledger->Drop(kDropClosed);
    if (exponents != nullptr) state_.ledger->Drop(kDropClosed);
    return;
  }
  const std::uint64_t waiting = state_.ring.tail() - state_.ring.head();
  bool wake = waiting % kBatchRecords == 0;
  if (exponents != nullptr) {
    Trim(*exponents, &record);
    MutexLock lock(state_.mutex);
    wake = state_.PushProducedLocked(std::move(record)) || wake;
  }
  if (wake) state_.batcher->Wake();
}

void Recorder::GiveUp(Slot* slot, std::string_view cause) {
  state_.ledger->Drop(cause);
  if (std::exchange(slot->exponents, nullptr) != nullptr) state_.ledger->Drop(cause);
  state_.ring.GiveUp(slot);
  state_.batcher->Wake();  // it may be what others wait behind
}

void Recorder::EndStep(Slot** gate) {
  {
    MutexLock lock(state_.mutex);
    if (gate != nullptr) *gate = graphs_.GateLocked(state_.step + 1);
    state_.PushLocked(StepRecord{state_.step, state_.clock->UnixNanos(), state_.micro_batches});
    BeginStepLocked(state_.step + 1);
  }
  state_.batcher->Wake();
}

Status Recorder::SetStep(std::uint64_t step, Slot** gate) {
  if (step > kStepMax) {
    return Status(Code::kInvalidArgument, "set step " + std::to_string(step) +
                                              ": expected at most 2^63-1; count steps from 0");
  }
  MutexLock lock(state_.mutex);
  if (step < state_.step) {
    return Status(Code::kInvalidArgument,
                  "set step " + std::to_string(step) + ": the current step is " +
                      std::to_string(state_.step) +
                      "; steps never go back within a launch; start a new agent instead");
  }
  if (gate != nullptr) *gate = graphs_.GateLocked(step);
  if (step != state_.step) BeginStepLocked(step);
  return Status::Ok();
}

void Recorder::BeginStepLocked(std::uint64_t step) {
  state_.step = step;
  state_.order = 0;
  state_.micro_batches = 0;
  if (next_steps_) {
    steps_ = *std::exchange(next_steps_, std::nullopt);
    asked_ = true;
  }
  pending_captures_.BeginStepLocked();
}

void Recorder::RecordSteps(StepSet steps) {
  MutexLock lock(state_.mutex);
  next_steps_ = std::move(steps);
}

std::uint64_t Recorder::step() const {
  MutexLock lock(state_.mutex);
  return state_.step;
}

bool Recorder::StepWanted() const {
  MutexLock lock(state_.mutex);
  return steps_.Contains(state_.step) || pending_captures_.active_locked();
}

bool Recorder::StepAsked() const {
  MutexLock lock(state_.mutex);
  return (asked_ && steps_.Contains(state_.step)) || pending_captures_.active_locked();
}

void Recorder::Refuse(std::string_view cause) {
  MutexLock lock(state_.mutex);
  if (state_.refused.empty()) state_.refused = cause;
}

void Recorder::DropRest(std::string_view cause) {
  {
    MutexLock lock(state_.mutex);
    state_.ended = true;
  }
  state_.ledger->Drop(cause, state_.ring.Abandon());
  state_.ledger->Drop(cause, state_.side.Clear());
  state_.ledger->Drop(cause, captures_.DropAll());
}

}  // namespace statcollect
