#include "server/ingest/decoded_bytes.h"

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

}  // namespace

std::size_t DecodedBytes(const TensorDef& def) {
  return sizeof def + kNodeBytes + Heap(def.key.name) + Heap(def.key.output_path) +
         Heap(def.parent) + Heap(def.class_name);
}

std::size_t DecodedBytes(const Layout& layout) {
  return sizeof layout + Heap(layout.shape) + (layout.placement ? Heap(*layout.placement) : 0);
}

std::size_t DecodedBytes(const RecordBatch& batch) {
  std::size_t bytes = sizeof batch + Bytes(batch.stats) + Heap(batch.scalars) + Heap(batch.events) +
                      Heap(batch.memory) + Heap(batch.densities) + Heap(batch.settings) +
                      Heap(batch.steps) + Heap(batch.captures) + Heap(batch.exponents) +
                      Heap(batch.tokens);
  for (const TensorDef& def : batch.activations) bytes += DecodedBytes(def);
  for (const Layout& layout : batch.layouts) bytes += DecodedBytes(layout);
  for (const ScalarRecord& record : batch.scalars) bytes += Heap(record.name);
  for (const EventRecord& record : batch.events)
    bytes += Heap(record.kind) + Heap(record.text) + Heap(record.fields);
  for (const MemoryRecord& record : batch.memory)
    bytes += Heap(record.device) + Heap(record.module);
  for (const DensityRecord& record : batch.densities)
    bytes += Heap(record.input) + Heap(record.valid_per_sample);
  for (const SettingRecord& record : batch.settings)
    bytes += Heap(record.name) + Heap(record.value);
  for (const CaptureChunk& record : batch.captures) bytes += Heap(record.data);
  for (const ExponentRecord& record : batch.exponents) bytes += Heap(record.counts);
  for (const TokenRecord& record : batch.tokens) bytes += Heap(record.tap) + Heap(record.rows);
  return bytes;
}

}  // namespace statcollect
