#include "agent/staging/recorder.h"

#include <algorithm>
#include <new>
#include <utility>

#include "common/names.h"

namespace statcollect {
namespace {

Status DuplicateError(const TensorKey& key, std::uint64_t step) {
  return Status(Code::kInvalidArgument,
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

Status UnknownHandle(std::uint32_t handle) {
  return Status(Code::kInvalidArgument, "observe: handle " + std::to_string(handle) +
                                            " was never given out; expected one that Intern returned");
}

}  // namespace

Recorder::Recorder(const Options& options, const Clock* clock, Ledger* ledger, Waker* batcher)
    : clock_(clock),
      ledger_(ledger),
      batcher_(batcher),
      sketch_(options.sketch),
      samples_(options.samples),
      ring_(options.slots, options.sketch, options.samples),
      queue_(ledger),
      steps_(options.steps),
      registry_(&definitions_),
      exponents_(options.exponents) {
  for (const CaptureSpec& spec : options.captures) pending_captures_.push_back({.spec = spec, .request = {}});
  ServePendingCapturesLocked();
}

Result<std::uint32_t> Recorder::Intern(const IdentityView& identity) {
  std::lock_guard lock(mutex_);
  return registry_.Intern(identity);
}

Status Recorder::Begin(std::uint32_t handle, DType dtype, std::span<const std::int64_t> shape, Slot** slot,
                       std::optional<CaptureTarget>* capture) {
  bool wake = false;
  {
    std::lock_guard lock(mutex_);
    const std::uint64_t before = ring_.tail();
    STATCOLLECT_RETURN_IF_ERROR(BeginLocked(handle, dtype, shape, slot, capture));
    wake = *slot != nullptr && before == ring_.head();
  }
  if (wake) batcher_->Wake();
  return Status::Ok();
}

Status Recorder::Begin(const IdentityView& identity, bool next_call, DType dtype,
                       std::span<const std::int64_t> shape, Slot** slot,
                       std::optional<CaptureTarget>* capture) {
  *slot = nullptr;
  bool wake = false;
  {
    std::lock_guard lock(mutex_);
    if (!WantsLocked(identity.mode) && !keeping_) return Status::Ok();
    const Result<std::uint32_t> handle =
        next_call ? registry_.InternNextCall(identity, step_) : registry_.Intern(identity);
    if (!handle.ok()) {
      if (handle.status().code() != Code::kResourceExhausted) return handle.status();
      ledger_->ProduceDropped(kDropTableFull);
      return Status::Ok();
    }
    const std::uint64_t before = ring_.tail();
    STATCOLLECT_RETURN_IF_ERROR(BeginLocked(*handle, dtype, shape, slot, capture));
    wake = *slot != nullptr && before == ring_.head();
  }
  if (wake) batcher_->Wake();
  return Status::Ok();
}

Status Recorder::BeginLocked(std::uint32_t handle, DType dtype, std::span<const std::int64_t> shape,
                             Slot** slot, std::optional<CaptureTarget>* capture) {
  *slot = nullptr;
  Registry::Activation* activation = registry_.Find(handle);
  if (activation == nullptr) return UnknownHandle(handle);
  const bool wanted = WantsLocked(activation->def.key.mode);
  if (!wanted && !keeping_) return Status::Ok();
  if (activation->next_step > step_) return DuplicateError(activation->def.key, step_);
  std::optional<CaptureTarget> target;
  if (keeping_ && capture != nullptr && refused_.empty()) target = MatchLocked(activation->def.key);
  if (!wanted && !target) return Status::Ok();
  activation->next_step = step_ + 1;
  NoteMicroBatchLocked(activation->def.key.micro_batch);
  const std::uint32_t order = order_++;
  if (!refused_.empty()) {
    ledger_->ProduceDropped(refused_);
    return Status::Ok();
  }
  const std::uint32_t layout = registry_.InternLayout(dtype, shape, activation->last_layout);
  if (layout == Registry::kNone) {
    if (target) {
      MissLocked(step_, target->requests, activation->def.key.name,
                 "in step " + std::to_string(step_) + ": there are too many different shapes");
    }
    ledger_->ProduceDropped(kDropTableFull);
    return Status::Ok();
  }
  activation->last_layout = layout;
  const std::uint32_t definition = registry_.Define(activation);  // the last thing that may allocate
  if (target) {
    target->activation = definition;
    target->layout = layout;
    *capture = *std::move(target);
    if (!wanted) return Status::Ok();
  }
  Slot* reserved = ring_.TryReserve();
  if (reserved == nullptr) {
    ledger_->ProduceDropped(kDropBufferFull);
    return Status::Ok();
  }
  ledger_->Produce();
  reserved->activation = definition;
  reserved->layout = layout;
  reserved->step = step_;
  reserved->order = order;
  reserved->sample_count = 0;
  if (!exponents_.empty()) WantExponentsLocked(activation->def.key, reserved);
  *slot = reserved;
  return Status::Ok();
}

void Recorder::WantExponentsLocked(const TensorKey& key, Slot* slot) {
  const bool wanted = std::any_of(exponents_.begin(), exponents_.end(), [&](const ExponentSpec& spec) {
    return spec.steps.Contains(step_) && spec.Matches(key);
  });
  if (!wanted) return;
  slot->exponents.reset(new (std::nothrow) ExponentCounts());
  if (slot->exponents == nullptr) {
    ledger_->ProduceDropped(kDropBufferFull);
  } else {
    ledger_->Produce();  // now, with its tensor: what comes of a device late belongs to what was handed over
  }
}

void Recorder::Commit(Slot* slot) {
  const std::unique_ptr<ExponentCounts> exponents = std::move(slot->exponents);
  ExponentRecord record{.step = slot->step, .activation = slot->activation, .layout = slot->layout};
  if (!ring_.Commit(slot)) {
    ledger_->Drop(kDropClosed);
    if (exponents != nullptr) ledger_->Drop(kDropClosed);
    return;
  }
  const std::uint64_t waiting = ring_.tail() - ring_.head();
  bool wake = waiting % kBatchRecords == 0;
  if (exponents != nullptr) {
    Trim(*exponents, &record);
    std::lock_guard lock(mutex_);
    wake = PushProducedLocked(std::move(record)) || wake;
  }
  if (wake) batcher_->Wake();
}

void Recorder::GiveUp(Slot* slot, std::string_view cause) {
  ledger_->Drop(cause);
  if (std::exchange(slot->exponents, nullptr) != nullptr) ledger_->Drop(cause);
  ring_.GiveUp(slot);
  batcher_->Wake();  // it may be what others wait behind
}

Status Recorder::Capture(std::uint32_t handle, DType dtype, std::span<const std::int64_t> shape,
                         Captured* out) {
  std::lock_guard lock(mutex_);
  return CaptureLocked(handle, dtype, shape, out);
}

Status Recorder::Capture(const IdentityView& identity, bool next_call, DType dtype,
                         std::span<const std::int64_t> shape, Captured* out) {
  std::lock_guard lock(mutex_);
  const auto handle = next_call ? registry_.InternNextCall(identity, step_) : registry_.Intern(identity);
  return handle.ok() ? CaptureLocked(*handle, dtype, shape, out) : handle.status();
}

Status Recorder::CaptureLocked(std::uint32_t handle, DType dtype, std::span<const std::int64_t> shape,
                               Captured* out) {
  Registry::Activation* activation = registry_.Find(handle);
  if (activation == nullptr) return UnknownHandle(handle);
  const auto root = registry_.InternCall(*activation, 0);
  if (!root.ok()) return root.status();
  const std::uint32_t layout = registry_.InternLayout(dtype, shape, activation->last_layout);
  if (layout == Registry::kNone) return {Code::kResourceExhausted, "observe: too many different shapes"};
  NoteMicroBatchLocked(activation->def.key.micro_batch);
  *out = {*root, activation->def.key.call, layout, order_++};
  return Status::Ok();
}

bool Recorder::Replay(const Captured& captured, std::uint32_t call, std::uint32_t stride, std::uint64_t step,
                      ObservedTensor* record) {
  constexpr int kTries = 64;
  std::lock_guard lock(mutex_);
  std::string_view cause = kDropTableFull;
  for (int i = 0; i < kTries && refused_.empty(); ++i, call += stride) {
    const auto handle = registry_.InternCall(*registry_.Find(captured.root), call);
    if (!handle.ok()) break;
    Registry::Activation* activation = registry_.Find(*handle);
    if (activation->next_step > step) {
      cause = kDropGraphReplay;
      continue;
    }
    activation->next_step = step + 1;
    record->activation = registry_.Define(activation);
    record->layout = captured.layout;
    record->step = step;
    record->order = captured.order;
    ledger_->Produce();
    return true;
  }
  ledger_->ProduceDropped(refused_.empty() ? cause : std::string_view(refused_));
  return false;
}

Slot* Recorder::Gate() {
  std::lock_guard lock(mutex_);
  return GateLocked(step_);
}

Slot* Recorder::GateLocked(std::uint64_t next) {
  Slot* const slot = refused_.empty() ? ring_.TryReserve() : nullptr;
  if (slot != nullptr) slot->gate = ReplayGate{.step = next > step_ ? next - 1 : step_, .next = next};
  return slot;
}

void Recorder::OpenGate(Slot* gate) {
  (void)ring_.Commit(gate);
  batcher_->Wake();
}

template <typename Make>
Status Recorder::PushAt(std::string_view what, std::optional<std::uint64_t> step, const Make& make) {
  bool wake = false;
  {
    std::lock_guard lock(mutex_);
    const auto of = StepLocked(what, step);
    if (!of.ok()) return of.status();
    wake = PushLocked(make(*of));
  }
  if (wake) batcher_->Wake();
  return Status::Ok();
}

Status Recorder::LogScalar(std::string_view name, double value, std::uint32_t micro_batch,
                           std::optional<std::uint64_t> step) {
  STATCOLLECT_RETURN_IF_ERROR(ValidateTensorName("scalar", name));
  return PushAt("scalar", step, [&](std::uint64_t of) {
    if (of == step_) NoteMicroBatchLocked(micro_batch);
    return ScalarRecord{std::string(name), of, micro_batch, value};
  });
}

Status Recorder::LogEvent(std::string_view kind, std::string_view text,
                          const std::map<std::string, std::string>& fields,
                          std::optional<std::uint64_t> step) {
  STATCOLLECT_RETURN_IF_ERROR(ValidateTensorName("event kind", kind));
  if (fields.size() > kEventFieldsMax) {
    return Status(Code::kInvalidArgument, "log event '" + Printable(kind) + "': it has " +
                                              std::to_string(fields.size()) + " fields; expected at most " +
                                              std::to_string(kEventFieldsMax));
  }
  EventRecord event{.kind = std::string(kind),
                    .step = 0,
                    .unix_nanos = clock_->UnixNanos(),
                    .text = Printable(text, kEventTextBytesMax),
                    .fields = {}};
  for (const auto& [key, value] : fields) {
    STATCOLLECT_RETURN_IF_ERROR(ValidateTensorName("event field", key));
    event.fields.emplace(key, Printable(value, kEventFieldBytesMax));
  }
  return PushAt("event", step, [&](std::uint64_t of) {
    event.step = of;
    return std::move(event);
  });
}

Status Recorder::LogMemory(MemoryRecord record) {
  if (!record.device.empty()) STATCOLLECT_RETURN_IF_ERROR(ValidateTensorName("device", record.device));
  if (!record.module.empty()) STATCOLLECT_RETURN_IF_ERROR(ValidateTensorName("module", record.module));
  const auto phase = static_cast<int>(record.phase);
  if (phase <= 0 || phase >= kMemoryPhaseCount || record.present >> kMemoryQuantityCount != 0) {
    return {Code::kInvalidArgument, "log memory: found phase " + std::to_string(phase) + " and quantities " +
                                        std::to_string(record.present) + "; expected a phase of 1.." +
                                        std::to_string(kMemoryPhaseCount - 1) + " and bits 0.." +
                                        std::to_string(kMemoryQuantityCount - 1)};
  }
  for (int i = 0; i < kMemoryQuantityCount; ++i) {
    const auto quantity = static_cast<MemoryQuantity>(i);
    std::int64_t& bytes = record.bytes[static_cast<std::size_t>(i)];
    if (!record.Has(quantity)) bytes = 0;
    if (bytes < 0 && quantity != MemoryQuantity::kAllocatedDelta) {
      return {Code::kInvalidArgument, "log memory: " + std::string(Name(quantity)) + " is " +
                                          std::to_string(bytes) + "; expected bytes from 0"};
    }
  }
  return PushAt("memory", std::nullopt, [&](std::uint64_t of) {
    NoteMicroBatchLocked(record.micro_batch);
    record.step = of;
    return std::move(record);
  });
}

Status Recorder::LogDensity(DensityRecord record, std::optional<std::uint64_t> step) {
  STATCOLLECT_RETURN_IF_ERROR(ValidateTensorName("input", record.input));
  const auto type = static_cast<int>(record.type);
  if (type <= 0 || type >= kDensityTypeCount || record.valid > record.total) {
    return {Code::kInvalidArgument, "log density of '" + Printable(record.input) + "': found type " +
                                        std::to_string(type) + " and " + std::to_string(record.valid) +
                                        " of " + std::to_string(record.total) +
                                        " elements valid; expected type 1 or 2 and at most all"};
  }
  // The whole number tells more than a part of the samples.
  if (record.valid_per_sample.size() > kDensitySamplesMax) record.valid_per_sample.clear();
  return PushAt("density", step, [&](std::uint64_t of) {
    record.step = of;
    return std::move(record);
  });
}

Status Recorder::AddConfig(const std::map<std::string, std::string>& settings) {
  bool wake = false;
  Status status;
  for (const auto& [name, value] : settings) {
    STATCOLLECT_RETURN_IF_ERROR(ValidateTensorName("setting", name));
    std::lock_guard lock(mutex_);
    if (settings_.size() >= kAddedSettingsMax && !settings_.contains(name)) {
      status = Status(Code::kResourceExhausted, "add to the configuration: '" + Printable(name) +
                                                    "' would be one of more than " +
                                                    std::to_string(kAddedSettingsMax) + " added names");
      break;
    }
    settings_.insert(name);
    wake = PushLocked(SettingRecord{name, Printable(value, kSettingBytesMax)}) || wake;
  }
  if (wake) batcher_->Wake();
  return status;
}

void Recorder::EndStep(Slot** gate) {
  {
    std::lock_guard lock(mutex_);
    if (gate != nullptr) *gate = GateLocked(step_ + 1);
    PushLocked(StepRecord{step_, clock_->UnixNanos(), micro_batches_});
    BeginStepLocked(step_ + 1);
  }
  batcher_->Wake();
}

Status Recorder::SetStep(std::uint64_t step, Slot** gate) {
  std::lock_guard lock(mutex_);
  if (step < step_) {
    return Status(Code::kInvalidArgument,
                  "set step " + std::to_string(step) + ": the current step is " + std::to_string(step_) +
                      "; steps never go back within a launch; start a new agent instead");
  }
  if (gate != nullptr) *gate = GateLocked(step);
  if (step != step_) BeginStepLocked(step);
  return Status::Ok();
}

void Recorder::BeginStepLocked(std::uint64_t step) {
  step_ = step;
  order_ = 0;
  micro_batches_ = 0;
  if (next_steps_) steps_ = *std::exchange(next_steps_, std::nullopt);
  if (!pending_captures_.empty()) ServePendingCapturesLocked();
}

std::optional<CaptureTarget> Recorder::MatchLocked(const TensorKey& key) {
  std::optional<CaptureTarget> target;
  for (PendingCapture& wish : pending_captures_) {
    if (!wish.spec.steps.Contains(step_) || !wish.spec.Matches(key)) continue;
    wish.matched = true;
    if (!target) target = CaptureTarget{.step = step_, .requests = {}};
    target->bytes_max = std::max(target->bytes_max, wish.spec.bytes_max);
    if (!wish.request.empty()) target->requests += (target->requests.empty() ? "" : ",") + wish.request;
  }
  return target;
}

// At the beginning of a step: forgets what has passed, and tells of what never came.
void Recorder::ServePendingCapturesLocked() {
  std::erase_if(pending_captures_, [this](const PendingCapture& wish) {
    if (wish.spec.steps.last() >= step_) return false;
    if (!wish.matched) {
      MissLocked(wish, "was not observed in step " + wish.spec.steps_text +
                           "; is it watched, and is the step recorded (statctl record, the steps of watch)?");
    }
    return true;
  });
  keeping_ = std::any_of(pending_captures_.begin(), pending_captures_.end(),
                         [this](const PendingCapture& wish) { return wish.spec.steps.Contains(step_); });
}

void Recorder::MissLocked(std::uint64_t step, const std::string& requests, const std::string& activation,
                          const std::string& why) {
  std::map<std::string, std::string> fields = {{"activation", activation}, {"reason", why}};
  if (!requests.empty()) fields["request"] = requests;
  PushLocked(EventRecord{.kind = "capture_missed",
                         .step = std::min(step, step_),
                         .unix_nanos = clock_->UnixNanos(),
                         .text = "not captured: " + activation + " " + why,
                         .fields = std::move(fields)});
}

void Recorder::MissLocked(const PendingCapture& wish, const std::string& why) {
  MissLocked(wish.spec.steps.last(), wish.request, wish.spec.Describe(), why);
}

void Recorder::MissCapture(std::uint64_t step, const std::string& requests, const std::string& activation,
                           const std::string& why) {
  {
    std::lock_guard lock(mutex_);
    MissLocked(step, requests, activation, why);
  }
  batcher_->Wake();
}

void Recorder::MissCapture(const CaptureTarget& target, const std::string& why) {
  const TensorDef def = definitions_.Activations(target.activation, target.activation).front();
  MissCapture(target.step, target.requests, def.key.name,
              "in step " + std::to_string(target.step) + ": " + why);
}

void Recorder::KeepValues(CaptureSpec spec, const std::string& request) {
  {
    std::lock_guard lock(mutex_);
    if (!request.empty() && !requests_.insert(request).second) return;
    PendingCapture wish{.spec = std::move(spec), .request = request};
    if (wish.spec.steps.last() < step_) {
      MissLocked(wish, "in step " + wish.spec.steps_text + ": it has passed, this rank is at step " +
                           std::to_string(step_));
    } else if (pending_captures_.size() >= kCaptureSpecsMax) {
      MissLocked(wish, "in step " + wish.spec.steps_text + ": " + std::to_string(kCaptureSpecsMax) +
                           " captures wait already");
    } else {
      pending_captures_.push_back(std::move(wish));
      ServePendingCapturesLocked();
      return;
    }
  }
  batcher_->Wake();
}

void Recorder::EndCaptures() {
  std::lock_guard lock(mutex_);
  for (const PendingCapture& wish : std::exchange(pending_captures_, {})) {
    if (!wish.matched) {
      MissLocked(wish,
                 "in step " + wish.spec.steps_text + ": the run ended at step " + std::to_string(step_));
    }
  }
  keeping_ = false;
}

void Recorder::RecordSteps(StepSet steps) {
  std::lock_guard lock(mutex_);
  next_steps_ = std::move(steps);
}

std::uint64_t Recorder::step() const {
  std::lock_guard lock(mutex_);
  return step_;
}

bool Recorder::StepWanted() const {
  std::lock_guard lock(mutex_);
  return steps_.Contains(step_) || keeping_;
}

void Recorder::Refuse(std::string_view cause) {
  std::lock_guard lock(mutex_);
  if (refused_.empty()) refused_ = cause;
}

void Recorder::DropRest(std::string_view cause) {
  {
    std::lock_guard lock(mutex_);
    ended_ = true;
  }
  ledger_->Drop(cause, ring_.Abandon());
  ledger_->Drop(cause, side_.Clear());
  ledger_->Drop(cause, queue_.DropAll());
}

bool Recorder::PushLocked(SideRecord record) {
  if (!refused_.empty()) {
    ledger_->ProduceDropped(refused_);
    return false;
  }
  ledger_->Produce();  // first: the batcher may take and settle it before this returns
  return PushProducedLocked(std::move(record));
}

bool Recorder::PushProducedLocked(SideRecord record) {
  if (ended_) {
    ledger_->Drop(kDropClosed);
    return false;
  }
  bool was_empty = false;
  bool pushed = false;
  try {
    pushed = side_.TryPush(std::move(record), ring_.tail(), &was_empty);
  } catch (const std::bad_alloc&) {
    // As if the queue were full.
  }
  if (!pushed) ledger_->Drop(kDropBufferFull);
  return was_empty;
}

Result<std::uint64_t> Recorder::StepLocked(std::string_view what, std::optional<std::uint64_t> step) const {
  if (!step) return step_;
  if (*step <= step_) return *step;
  return Status(Code::kInvalidArgument, "log " + std::string(what) + ": step " + std::to_string(*step) +
                                            " is still to come; expected at most the current one, " +
                                            std::to_string(step_));
}

void Recorder::NoteMicroBatchLocked(std::uint32_t micro_batch) {
  micro_batches_ = std::max(micro_batches_, micro_batch == ~0u ? micro_batch : micro_batch + 1);
}

}  // namespace statcollect
