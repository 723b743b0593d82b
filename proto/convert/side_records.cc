#include "proto/convert/side_records.h"

#include <algorithm>
#include <bit>
#include <string>
#include <utility>
#include <vector>

#include "common/names.h"
#include "proto/convert/checks.h"

namespace statcollect::convert {
namespace {

void ToWire(const MemoryRecord& record, v1::Memory* wire) {
  wire->set_step(record.step);
  wire->set_micro_batch(record.micro_batch);
  wire->set_phase(static_cast<v1::MemoryPhase>(record.phase));
  wire->set_device(record.device);
  wire->set_module(record.module);
  wire->set_present(record.present);
  for (int i = 0; i < kMemoryQuantityCount; ++i) {
    const auto quantity = static_cast<MemoryQuantity>(i);
    if (record.Has(quantity)) wire->add_bytes(record.Of(quantity));
  }
}

void ToWire(const DensityRecord& record, v1::Density* wire) {
  wire->set_step(record.step);
  wire->set_micro_batch(record.micro_batch);
  wire->set_input(record.input);
  wire->set_type(static_cast<v1::DensityType>(record.type));
  wire->set_pad_index(record.pad_index);
  wire->set_valid(record.valid);
  wire->set_total(record.total);
  wire->mutable_valid_per_sample()->Assign(record.valid_per_sample.begin(),
                                           record.valid_per_sample.end());
}

Result<MemoryRecord> FromWire(const v1::Memory& wire) {
  MemoryRecord record{.step = wire.step(),
                      .micro_batch = wire.micro_batch(),
                      .phase = static_cast<MemoryPhase>(wire.phase()),
                      .device = wire.device(),
                      .module = wire.module(),
                      .present = wire.present()};
  if (!InRange(wire.phase(), kMemoryPhaseCount)) {
    return Invalid("phase is " + std::to_string(wire.phase()) + "; expected 1.." +
                   std::to_string(kMemoryPhaseCount - 1));
  }
  STATCOLLECT_RETURN_IF_ERROR(CheckOptionalName("device", wire.device()));
  STATCOLLECT_RETURN_IF_ERROR(CheckOptionalName("module", wire.module()));
  if (wire.present() >> kMemoryQuantityCount != 0 ||
      std::popcount(wire.present()) != wire.bytes_size()) {
    return Invalid("present is " + std::to_string(wire.present()) + " with " +
                   std::to_string(wire.bytes_size()) +
                   " entries in bytes; expected one for each bit of 0.." +
                   std::to_string(kMemoryQuantityCount - 1) + " that is set");
  }
  int next = 0;
  for (int i = 0; i < kMemoryQuantityCount; ++i) {
    const auto quantity = static_cast<MemoryQuantity>(i);
    if (!record.Has(quantity)) continue;
    const std::int64_t bytes = wire.bytes(next++);
    const bool signed_quantity = quantity == MemoryQuantity::kAllocatedDelta;
    if (bytes < 0 && !signed_quantity) {
      return Invalid(std::string(Name(quantity)) + " is " + std::to_string(bytes) +
                     "; expected bytes from 0");
    }
    record.bytes[static_cast<std::size_t>(i)] = bytes;
  }
  return record;
}

Result<DensityRecord> FromWire(const v1::Density& wire) {
  STATCOLLECT_RETURN_IF_ERROR(ValidateTensorName("input", wire.input()));
  if (!InRange(wire.type(), kDensityTypeCount)) {
    return Invalid("type is " + std::to_string(wire.type()) + "; expected 1.." +
                   std::to_string(kDensityTypeCount - 1));
  }
  if (wire.valid() > wire.total() || wire.total() >= kElementsMax) {
    return Invalid("valid is " + std::to_string(wire.valid()) + " of " +
                   std::to_string(wire.total()) +
                   " elements; expected at most all, and fewer than 2^62");
  }
  if (wire.valid_per_sample_size() > static_cast<int>(kDensitySamplesMax)) {
    return Invalid("valid_per_sample has " + std::to_string(wire.valid_per_sample_size()) +
                   " entries; at most " + std::to_string(kDensitySamplesMax) + " are accepted");
  }
  std::uint64_t left = wire.valid();
  for (const std::uint64_t valid : wire.valid_per_sample()) {
    if (valid > left) left = kElementsMax;  // more than there are
    left -= std::min(valid, left);
  }
  if (wire.valid_per_sample_size() > 0 && left != 0) {
    return Invalid("valid_per_sample does not add up to valid, " + std::to_string(wire.valid()));
  }
  return DensityRecord{
      .step = wire.step(),
      .micro_batch = wire.micro_batch(),
      .input = wire.input(),
      .type = static_cast<DensityType>(wire.type()),
      .pad_index = wire.pad_index(),
      .valid = wire.valid(),
      .total = wire.total(),
      .valid_per_sample = {wire.valid_per_sample().begin(), wire.valid_per_sample().end()}};
}

Result<SettingRecord> FromWire(const v1::Setting& wire) {
  STATCOLLECT_RETURN_IF_ERROR(ValidateTensorName("setting", wire.name()));
  STATCOLLECT_RETURN_IF_ERROR(
      Within("setting '" + Printable(wire.name()) + "'", CheckText("value", wire.value())));
  return SettingRecord{.name = wire.name(), .value = wire.value()};
}

// One kind of small records of a batch, after its own FromWire.
template <typename Wire, typename Record>
Status AllFromWire(const char* field, const google::protobuf::RepeatedPtrField<Wire>& wire,
                   std::vector<Record>* records) {
  for (int i = 0; i < wire.size(); ++i) {
    auto record = FromWire(wire[i]);
    if (!record.ok())
      return Within("batch: " + At(field, static_cast<std::size_t>(i)), record.status());
    records->push_back(*std::move(record));
  }
  return Status::Ok();
}

}  // namespace

void SideRecordsToWire(const RecordBatch& batch, v1::Records* wire) {
  for (const ScalarRecord& record : batch.scalars) {
    v1::Scalar* s = wire->add_scalars();
    s->set_name(record.name);
    s->set_step(record.step);
    s->set_micro_batch(record.micro_batch);
    s->set_value(record.value);
  }
  for (const EventRecord& record : batch.events) {
    v1::Event* e = wire->add_events();
    e->set_kind(record.kind);
    e->set_step(record.step);
    e->set_unix_nanos(record.unix_nanos);
    e->set_text(record.text);
    e->mutable_fields()->insert(record.fields.begin(), record.fields.end());
    if (record.from_collector) e->set_origin("collector");
  }
  for (const MemoryRecord& record : batch.memory) ToWire(record, wire->add_memory());
  for (const DensityRecord& record : batch.densities) ToWire(record, wire->add_densities());
  for (const SettingRecord& record : batch.settings) {
    v1::Setting* s = wire->add_settings();
    s->set_name(record.name);
    s->set_value(record.value);
  }
  for (const StepRecord& record : batch.steps) {
    v1::StepEnd* s = wire->add_steps();
    s->set_step(record.step);
    s->set_unix_nanos(record.unix_nanos);
    s->set_micro_batches(record.micro_batches);
  }
}

Status SideRecordsFromWire(const v1::Records& wire, RecordBatch* batch) {
  for (int i = 0; i < wire.scalars_size(); ++i) {
    const v1::Scalar& s = wire.scalars(i);
    STATCOLLECT_RETURN_IF_ERROR(Within("batch: " + At("scalars", static_cast<std::size_t>(i)),
                                       ValidateTensorName("scalar", s.name())));
    batch->scalars.push_back({s.name(), s.step(), s.micro_batch(), s.value()});
  }
  for (int i = 0; i < wire.events_size(); ++i) {
    const v1::Event& e = wire.events(i);
    const std::string place = "batch: " + At("events", static_cast<std::size_t>(i));
    STATCOLLECT_RETURN_IF_ERROR(Within(place, ValidateTensorName("event kind", e.kind())));
    STATCOLLECT_RETURN_IF_ERROR(Within(place, CheckText("text", e.text())));
    STATCOLLECT_RETURN_IF_ERROR(Within(place, CheckTextMap("field", e.fields())));
    batch->events.push_back({e.kind(), e.step(), e.unix_nanos(), e.text(), CopyMap(e.fields())});
  }
  STATCOLLECT_RETURN_IF_ERROR(AllFromWire("memory", wire.memory(), &batch->memory));
  STATCOLLECT_RETURN_IF_ERROR(AllFromWire("densities", wire.densities(), &batch->densities));
  STATCOLLECT_RETURN_IF_ERROR(AllFromWire("settings", wire.settings(), &batch->settings));
  for (const v1::StepEnd& s : wire.steps())
    batch->steps.push_back({s.step(), s.unix_nanos(), s.micro_batches()});
  return Status::Ok();
}

}  // namespace statcollect::convert
