#include "server/store/clickhouse/batch.h"

#include <utility>

#include "server/store/codec/catalogue.h"
#include "server/store/codec/sealed.h"

namespace statcollect {
namespace {

std::uint64_t ItemOfChunk(std::uint32_t activation, std::uint32_t offset) {
  return std::uint64_t{activation} << 32 | offset;
}

void AddBlocks(std::vector<EncodedStatBlock> blocks, std::vector<RecordRow>* rows) {
  for (EncodedStatBlock& block : blocks) {
    if (!block.own.sums.empty()) {
      rows->push_back({.family = RowFamily::kSums,
                       .step = block.key.step,
                       .item = block.key.activation,
                       .value = std::move(block.own.sums)});
    }
    rows->push_back({.family = RowFamily::kBlock,
                     .step = block.key.step,
                     .item = block.key.activation,
                     .records = static_cast<std::uint32_t>(block.records),
                     .digest = block.digest,
                     .value = std::move(block.own.stats)});
  }
}

// Sequence numbers make keys unique, in the order in which they were recorded.
void AddSmallRecords(const RecordBatch& records, std::vector<RecordRow>* rows) {
  std::uint64_t seq = records.first_seq + records.stats.size();
  const auto add = [&](RowFamily family, std::uint64_t step, std::string value) {
    rows->push_back({.family = family, .step = step, .item = seq++, .value = std::move(value)});
  };
  for (const ScalarRecord& scalar : records.scalars)
    add(RowFamily::kScalar, scalar.step, Encode(scalar));
  for (const EventRecord& event : records.events) add(RowFamily::kEvent, event.step, Encode(event));
  for (const MemoryRecord& memory : records.memory)
    add(RowFamily::kMemory, memory.step, Encode(memory));
  for (const DensityRecord& density : records.densities)
    add(RowFamily::kDensity, density.step, Encode(density));
  for (const SettingRecord& setting : records.settings)
    add(RowFamily::kSetting, 0, Encode(setting));
  for (const StepRecord& step : records.steps)
    rows->push_back({.family = RowFamily::kStepEnd, .step = step.step, .value = Encode(step)});
}

void AddChunks(const RecordBatch& records, std::vector<RecordRow>* rows) {
  for (const CaptureChunk& chunk : records.captures) {
    const std::uint64_t item = ItemOfChunk(chunk.activation, chunk.offset);
    const CaptureHead head{.layout = chunk.layout,
                           .elements = chunk.elements,
                           .bytes = static_cast<std::uint32_t>(chunk.data.size())};
    rows->push_back({.family = RowFamily::kCaptureHead,
                     .step = chunk.step,
                     .item = item,
                     .value = Encode(head)});
    rows->push_back({.family = RowFamily::kCaptureData,
                     .step = chunk.step,
                     .item = item,
                     .value = Seal(kChunkVersion, chunk.data)});
  }
  for (const ExponentRecord& record : records.exponents)
    rows->push_back({.family = RowFamily::kExponent,
                     .step = record.step,
                     .item = record.activation,
                     .value = Encode(record)});
  std::uint64_t seq = records.first_seq + records.records() - records.tokens.size();
  for (const TokenRecord& record : records.tokens)
    rows->push_back({.family = RowFamily::kTokens,
                     .step = record.step,
                     .item = seq++,
                     .value = Encode(record)});
}

}  // namespace

std::unique_ptr<PreparedBatch> ClickHouseStreamWriter::Prepare(const RecordBatch& records) {
  auto batch = std::make_unique<ClickHouseBatch>();
  for (const TensorDef& def : records.activations)
    batch->rows.push_back({.family = RowFamily::kActivation, .item = def.id, .value = Encode(def)});
  for (const Layout& layout : records.layouts)
    batch->rows.push_back(
        {.family = RowFamily::kLayout, .item = layout.id, .value = Encode(layout)});
  std::vector<EncodedStatBlock> blocks;
  encoder_.Encode(records.stats, &blocks);
  AddBlocks(std::move(blocks), &batch->rows);
  AddSmallRecords(records, &batch->rows);
  AddChunks(records, &batch->rows);
  for (const RecordRow& row : batch->rows) batch->bytes += row.value.size();
  return batch;
}

}  // namespace statcollect
