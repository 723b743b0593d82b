#include "agent/staging/side_recorder.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "common/names.h"
#include "common/redact.h"

namespace statcollect {

template <typename Make>
Status SideRecorder::PushAt(std::string_view what, std::optional<std::uint64_t> step,
                            const Make& make, std::uint64_t* awaited) {
  bool wake = false;
  {
    MutexLock lock(state_.mutex);
    const auto of = StepLocked(what, step);
    if (!of.ok()) return of.status();
    wake = state_.PushLocked(make(*of), awaited);
  }
  if (wake) state_.batcher->Wake();
  return Status::Ok();
}

Status SideRecorder::LogScalar(std::string_view name, double value, std::uint32_t micro_batch,
                               std::optional<std::uint64_t> step) {
  STATCOLLECT_RETURN_IF_ERROR(ValidateTensorName("scalar", name));
  return PushAt("scalar", step, [&](std::uint64_t of) STATCOLLECT_REQUIRES(state_.mutex) {
    if (of == state_.step) state_.NoteMicroBatchLocked(micro_batch);
    return ScalarRecord{std::string(name), of, micro_batch, value};
  });
}

Status SideRecorder::LogEvent(std::string_view kind, std::string_view text,
                              const std::map<std::string, std::string>& fields,
                              std::optional<std::uint64_t> step) {
  STATCOLLECT_RETURN_IF_ERROR(ValidateTensorName("event kind", kind));
  if (fields.size() > kEventFieldsMax) {
    return Status(Code::kInvalidArgument,
                  "log event '" + Printable(kind) + "': it has " + std::to_string(fields.size()) +
                      " fields; expected at most " + std::to_string(kEventFieldsMax));
  }
  EventRecord event{.kind = std::string(kind),
                    .step = 0,
                    .unix_nanos = state_.clock->UnixNanos(),
                    .text = StoredText(text, kEventTextBytesMax),
                    .fields = StoredSettings(fields, kEventFieldBytesMax)};
  for (const auto& [key, value] : fields)
    STATCOLLECT_RETURN_IF_ERROR(ValidateTensorName("event field", key));
  return PushAt("event", step, [&](std::uint64_t of) {
    event.step = of;
    return std::move(event);
  });
}

Status SideRecorder::LogMemory(MemoryRecord record) {
  if (!record.device.empty())
    STATCOLLECT_RETURN_IF_ERROR(ValidateTensorName("device", record.device));
  if (!record.module.empty())
    STATCOLLECT_RETURN_IF_ERROR(ValidateTensorName("module", record.module));
  const auto phase = static_cast<int>(record.phase);
  if (phase <= 0 || phase >= kMemoryPhaseCount || record.present >> kMemoryQuantityCount != 0) {
    return {Code::kInvalidArgument, "log memory: found phase " + std::to_string(phase) +
                                        " and quantities " + std::to_string(record.present) +
                                        "; expected a phase of 1.." +
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
  return PushAt("memory", std::nullopt, [&](std::uint64_t of) STATCOLLECT_REQUIRES(state_.mutex) {
    state_.NoteMicroBatchLocked(record.micro_batch);
    record.step = of;
    return std::move(record);
  });
}

Status SideRecorder::LogDensity(DensityRecord record, std::optional<std::uint64_t> step) {
  STATCOLLECT_RETURN_IF_ERROR(ValidateTensorName("input", record.input));
  const auto type = static_cast<int>(record.type);
  if (type <= 0 || type >= kDensityTypeCount || record.valid > record.total) {
    return {Code::kInvalidArgument,
            "log density of '" + Printable(record.input) + "': found type " + std::to_string(type) +
                " and " + std::to_string(record.valid) + " of " + std::to_string(record.total) +
                " elements valid; expected type 1 or 2 and at most all"};
  }
  // The whole number tells more than a part of the samples.
  if (record.valid_per_sample.size() > kDensitySamplesMax) record.valid_per_sample.clear();
  return PushAt("density", step, [&](std::uint64_t of) {
    record.step = of;
    return std::move(record);
  });
}

Status SideRecorder::LogTokens(const TokenRecord& record, std::optional<std::uint64_t> step,
                               const ComputeTokens& compute) {
  STATCOLLECT_RETURN_IF_ERROR(ValidateTensorName("tap", record.tap));
  for (std::size_t begin = 0, count = 0; begin < record.rows.size(); begin += count) {
    count = std::min(record.rows.size() - begin, kTokenRowsMax);
    const auto first = record.rows.begin() + static_cast<std::ptrdiff_t>(begin);
    TokenRecord part{.tap = record.tap,
                     .call = record.call,
                     .dtype = record.dtype,
                     .columns = record.columns,
                     .first_column = record.first_column,
                     .rows = {first, first + static_cast<std::ptrdiff_t>(count)}};
    constexpr std::uint64_t kLost = ~std::uint64_t{0};
    std::uint64_t number = kLost;
    const auto make = [&](std::uint64_t of) {
      part.step = of;
      return std::move(part);
    };
    STATCOLLECT_RETURN_IF_ERROR(
        PushAt("tokens", step, make, compute == nullptr ? nullptr : &number));
    if (number != kLost) compute(begin, count, number);
  }
  return Status::Ok();
}

void SideRecorder::CompleteTokens(
    std::uint64_t number, const std::function<void(std::size_t row, RowStats* stats)>& fill) {
  state_.side.Complete(number, [&](SideRecord& record) {
    auto& rows = std::get<TokenRecord>(record).rows;
    for (std::size_t i = 0; i < rows.size(); ++i) fill(i, &rows[i].stats);
  });
}

void SideRecorder::LoseTokens(std::uint64_t number, std::string_view cause) {
  if (!state_.side.Remove(number)) return;
  state_.ledger->Drop(cause);
  state_.batcher->Wake();
}

Status SideRecorder::AddConfig(const std::map<std::string, std::string>& settings) {
  bool wake = false;
  Status status;
  for (const auto& [name, value] : StoredSettings(settings, kSettingBytesMax)) {
    STATCOLLECT_RETURN_IF_ERROR(ValidateTensorName("setting", name));
    MutexLock lock(state_.mutex);
    if (settings_.size() >= kAddedSettingsMax && !settings_.contains(name)) {
      status =
          Status(Code::kResourceExhausted, "add to the configuration: '" + Printable(name) +
                                               "' would be one of more than " +
                                               std::to_string(kAddedSettingsMax) + " added names");
      break;
    }
    settings_.insert(name);
    wake = state_.PushLocked(SettingRecord{name, value}) || wake;
  }
  if (wake) state_.batcher->Wake();
  return status;
}

Result<std::uint64_t> SideRecorder::StepLocked(std::string_view what,
                                               std::optional<std::uint64_t> step) const {
  if (!step) return state_.step;
  if (*step <= state_.step) return *step;
  return Status(Code::kInvalidArgument,
                "log " + std::string(what) + ": step " + std::to_string(*step) +
                    " is still to come; expected at most the current one, " +
                    std::to_string(state_.step));
}

}  // namespace statcollect
