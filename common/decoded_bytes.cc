#include "common/decoded_bytes.h"

#include <map>
#include <string>
#include <vector>

namespace statcollect {
namespace {

constexpr std::size_t kNodeBytes = 48;  // of a set or map, beside its value

std::size_t Heap(const std::string& text) { return text.capacity() > 15 ? text.capacity() + 1 : 0; }

template <typename T>
std::size_t Heap(const std::vector<T>& values) {
  return values.capacity() * sizeof(T);
}

std::size_t Heap(const std::map<std::string, std::string>& fields) {
  std::size_t bytes = 0;
  for (const auto& [name, value] : fields)
    bytes += kNodeBytes + 2 * sizeof(std::string) + Heap(name) + Heap(value);
  return bytes;
}

std::size_t Heap(const Placement& place) {
  return Heap(place.global_shape) + Heap(place.boxes) + Heap(place.ranges);
}

std::size_t Bytes(const StatColumns& stats) {
  return Heap(stats.activation) + Heap(stats.layout) + Heap(stats.step) + Heap(stats.order) +
         Heap(stats.stats) + Heap(stats.sketch) + Heap(stats.sample_count) + Heap(stats.samples);
}

template <typename Record>
std::size_t Bytes(const std::vector<Record>& records) {
  std::size_t bytes = (records.capacity() - records.size()) * sizeof(Record);
  for (const Record& record : records) bytes += DecodedBytes(record);
  return bytes;
}

}  // namespace

std::size_t DecodedBytes(const TensorDef& def) {
  return sizeof def + kNodeBytes + Heap(def.key.name) + Heap(def.key.output_path) +
         Heap(def.parent) + Heap(def.class_name);
}

std::size_t DecodedBytes(const Layout& layout) {
  return sizeof layout + Heap(layout.shape) + (layout.placement ? Heap(*layout.placement) : 0);
}

std::size_t DecodedBytes(const ScalarRecord& record) { return sizeof record + Heap(record.name); }

std::size_t DecodedBytes(const EventRecord& record) {
  return sizeof record + Heap(record.kind) + Heap(record.text) + Heap(record.fields);
}

std::size_t DecodedBytes(const MemoryRecord& record) {
  return sizeof record + Heap(record.device) + Heap(record.module);
}

std::size_t DecodedBytes(const DensityRecord& record) {
  return sizeof record + Heap(record.input) + Heap(record.valid_per_sample);
}

std::size_t DecodedBytes(const SettingRecord& record) {
  return sizeof record + Heap(record.name) + Heap(record.value);
}

std::size_t DecodedBytes(const StepRecord& record) { return sizeof record; }

std::size_t DecodedBytes(const CaptureChunk& record) { return sizeof record + Heap(record.data); }

std::size_t DecodedBytes(const ExponentRecord& record) {
  return sizeof record + Heap(record.counts);
}

std::size_t DecodedBytes(const TokenRecord& record) {
  return sizeof record + Heap(record.tap) + Heap(record.rows);
}

std::size_t DecodedBytes(const RecordBatch& batch) {
  std::size_t bytes = sizeof batch + Bytes(batch.activations) + Bytes(batch.layouts);
  ForEachKind(batch, [&](const auto& records) { bytes += Bytes(records); });
  return bytes;
}

}  // namespace statcollect
