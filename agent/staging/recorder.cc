#include "agent/staging/recorder.h"

#include <algorithm>
#include <new>
#include <utility>

#include "common/names.h"

namespace statcollect {
namespace {

Status DuplicateError(const ActivationKey& key, std::uint64_t step) {
  return Status(Code::kInvalidArgument,
                "observe '" + Printable(key.name) + "' (" + std::string(Name(key.kind)) + ", micro-batch " +
                    std::to_string(key.micro_batch) + ", call " + std::to_string(key.call) +
                    "): it was already observed in step " + std::to_string(step) +
                    "; expected once a step; end the step, or give the observation another call index");
}

}  // namespace

Recorder::Recorder(const Options& options, const Clock* clock, Ledger* ledger, Waker* batcher)
    : clock_(clock),
      ledger_(ledger),
      batcher_(batcher),
      ring_(options.slots, options.sketch, options.samples),
      steps_(options.steps),
      registry_(&definitions_) {}

Result<std::uint32_t> Recorder::Intern(const IdentityView& identity) {
  std::lock_guard lock(mutex_);
  return registry_.Intern(identity);
}

Status Recorder::Begin(std::uint32_t handle, DType dtype, std::span<const std::int64_t> shape, Slot** slot) {
  bool wake = false;
  {
    std::lock_guard lock(mutex_);
    const std::uint64_t before = ring_.tail();
    STATCOLLECT_RETURN_IF_ERROR(BeginLocked(handle, dtype, shape, slot));
    wake = *slot != nullptr && before == ring_.head();
  }
  if (wake) batcher_->Wake();
  return Status::Ok();
}

Status Recorder::Begin(const IdentityView& identity, bool next_call, DType dtype,
                       std::span<const std::int64_t> shape, Slot** slot) {
  *slot = nullptr;
  bool wake = false;
  {
    std::lock_guard lock(mutex_);
    if (!WantsLocked(identity.mode)) return Status::Ok();
    const Result<std::uint32_t> handle =
        next_call ? registry_.InternNextCall(identity, step_) : registry_.Intern(identity);
    if (!handle.ok()) {
      if (handle.status().code() != Code::kResourceExhausted) return handle.status();
      ledger_->ProduceDropped(kDropTableFull);
      return Status::Ok();
    }
    const std::uint64_t before = ring_.tail();
    STATCOLLECT_RETURN_IF_ERROR(BeginLocked(*handle, dtype, shape, slot));
    wake = *slot != nullptr && before == ring_.head();
  }
  if (wake) batcher_->Wake();
  return Status::Ok();
}

Status Recorder::BeginLocked(std::uint32_t handle, DType dtype, std::span<const std::int64_t> shape,
                             Slot** slot) {
  *slot = nullptr;
  Registry::Activation* activation = registry_.Find(handle);
  if (activation == nullptr) {
    return Status(Code::kInvalidArgument, "observe: handle " + std::to_string(handle) +
                                              " was never given out; expected one that Intern returned");
  }
  if (!WantsLocked(activation->def.key.mode)) return Status::Ok();
  if (activation->next_step > step_) return DuplicateError(activation->def.key, step_);
  activation->next_step = step_ + 1;
  NoteMicroBatchLocked(activation->def.key.micro_batch);
  const std::uint32_t order = order_++;
  if (!refused_.empty()) {
    ledger_->ProduceDropped(refused_);
    return Status::Ok();
  }
  const std::uint32_t layout = registry_.InternLayout(dtype, shape, activation->last_layout);
  if (layout == Registry::kNone) {
    ledger_->ProduceDropped(kDropTableFull);
    return Status::Ok();
  }
  activation->last_layout = layout;
  const std::uint32_t definition = registry_.Define(activation);  // the last thing that may allocate
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
  *slot = reserved;
  return Status::Ok();
}

void Recorder::Commit(Slot* slot) {
  if (!ring_.Commit(slot)) {
    ledger_->Drop(kDropClosed);
    return;
  }
  const std::uint64_t waiting = ring_.tail() - ring_.head();
  if (waiting % kBatchRecords == 0) batcher_->Wake();
}

void Recorder::GiveUp(Slot* slot, std::string_view cause) {
  ledger_->Drop(cause);
  ring_.GiveUp(slot);
  batcher_->Wake();  // it may be what others wait behind
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

void Recorder::EndStep() {
  {
    std::lock_guard lock(mutex_);
    PushLocked(StepRecord{step_, clock_->UnixNanos(), micro_batches_});
    BeginStepLocked(step_ + 1);
  }
  batcher_->Wake();
}

Status Recorder::SetStep(std::uint64_t step) {
  std::lock_guard lock(mutex_);
  if (step < step_) {
    return Status(Code::kInvalidArgument,
                  "set step " + std::to_string(step) + ": the current step is " + std::to_string(step_) +
                      "; steps never go back within a launch; start a new agent instead");
  }
  if (step == step_) return Status::Ok();
  BeginStepLocked(step);
  return Status::Ok();
}

void Recorder::BeginStepLocked(std::uint64_t step) {
  step_ = step;
  order_ = 0;
  micro_batches_ = 0;
  if (next_steps_) steps_ = *std::exchange(next_steps_, std::nullopt);
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
  return steps_.Contains(step_);
}

void Recorder::Refuse(std::string_view cause) {
  std::lock_guard lock(mutex_);
  if (refused_.empty()) refused_ = cause;
}

void Recorder::DropRest(std::string_view cause) {
  ledger_->Drop(cause, ring_.Abandon());
  ledger_->Drop(cause, side_.Clear());
}

bool Recorder::PushLocked(SideRecord record) {
  if (!refused_.empty()) {
    ledger_->ProduceDropped(refused_);
    return false;
  }
  // Into the books first: the batcher may take and settle it before this returns.
  bool was_empty = false;
  ledger_->Produce();
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
