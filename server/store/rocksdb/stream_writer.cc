#include "server/store/rocksdb/stream_writer.h"

#include "server/store/codec/catalogue.h"
#include "server/store/codec/sealed.h"
#include "server/store/key.h"

namespace statcollect {
namespace {

void PutDefinitions(AttemptId attempt, std::uint32_t rank, const RecordBatch& records,
                    RocksPreparedBatch* to) {
  for (const TensorDef& def : records.activations) {
    to->entries.push_back(
        {kCatalogue, KeyBuilder('a').U32(attempt).U32(rank).U32(def.id).Take(), Encode(def)});
  }
  for (const Layout& layout : records.layouts) {
    to->entries.push_back(
        {kCatalogue, KeyBuilder('l').U32(attempt).U32(rank).U32(layout.id).Take(), Encode(layout)});
  }
}

// Sequence numbers make keys of scalars, events, memory and densities unique, in the order in which
// they were recorded.
void PutSmallRecords(AttemptId attempt, std::uint32_t rank, const RecordBatch& records,
                     RocksPreparedBatch* to) {
  std::uint64_t seq = records.first_seq + records.stats.size();
  const auto numbered = [&](std::uint64_t step) {
    return KeyBuilder().U32(attempt).U32(rank).U64(step).U64(seq++).Take();
  };
  for (const ScalarRecord& scalar : records.scalars)
    to->entries.push_back({kScalars, numbered(scalar.step), Encode(scalar)});
  for (const EventRecord& event : records.events)
    to->entries.push_back({kEvents, numbered(event.step), Encode(event)});
  for (const MemoryRecord& memory : records.memory)
    to->entries.push_back({kMemory, numbered(memory.step), Encode(memory)});
  for (const DensityRecord& density : records.densities)
    to->entries.push_back({kDensities, numbered(density.step), Encode(density)});
  for (const SettingRecord& setting : records.settings) {
    to->entries.push_back({kCatalogue,
                           KeyBuilder('c').U32(attempt).U32(rank).Text(setting.name).Take(),
                           Encode(setting)});
  }
  for (const StepRecord& step : records.steps)
    to->entries.push_back({kSteps, StepPrefix(attempt, rank, step.step), Encode(step)});
}

void PutExponents(AttemptId attempt, std::uint32_t rank, const RecordBatch& records,
                  RocksPreparedBatch* to) {
  for (const ExponentRecord& record : records.exponents) {
    to->entries.push_back({kCaptures,
                           EncodeCaptureKey({.attempt = attempt,
                                             .rank = rank,
                                             .part = 'e',
                                             .step = record.step,
                                             .activation = record.activation}),
                           Encode(record)});
  }
}

// Numbered as small records are.
void PutTokens(AttemptId attempt, std::uint32_t rank, const RecordBatch& records,
               RocksPreparedBatch* to) {
  std::uint64_t seq = records.first_seq + records.records() - records.tokens.size();
  for (const TokenRecord& record : records.tokens) {
    to->entries.push_back({kCaptures,
                           EncodeCaptureKey({.attempt = attempt,
                                             .rank = rank,
                                             .part = 't',
                                             .step = record.step,
                                             .activation = static_cast<std::uint32_t>(seq >> 32),
                                             .offset = static_cast<std::uint32_t>(seq)}),
                           Encode(record)});
    ++seq;
  }
}

void PutCaptures(AttemptId attempt, std::uint32_t rank, const RecordBatch& records,
                 RocksPreparedBatch* to) {
  for (const CaptureChunk& chunk : records.captures) {
    CaptureKey key{.attempt = attempt,
                   .rank = rank,
                   .part = 'h',
                   .step = chunk.step,
                   .activation = chunk.activation,
                   .offset = chunk.offset};
    to->entries.push_back(
        {kCaptures, EncodeCaptureKey(key),
         Encode(CaptureHead{.layout = chunk.layout,
                            .elements = chunk.elements,
                            .bytes = static_cast<std::uint32_t>(chunk.data.size())})});
    key.part = 'd';
    to->entries.push_back(
        {kCaptures, EncodeCaptureKey(key), Seal(kCaptureDataVersion, chunk.data)});
  }
}

}  // namespace

std::unique_ptr<PreparedBatch> RocksStreamWriter::Prepare(const RecordBatch& records) {
  auto prepared = std::make_unique<RocksPreparedBatch>();
  PutDefinitions(attempt_, rank_, records, prepared.get());
  encoder_.Encode(records.stats, &prepared->blocks);
  PutSmallRecords(attempt_, rank_, records, prepared.get());
  PutCaptures(attempt_, rank_, records, prepared.get());
  PutExponents(attempt_, rank_, records, prepared.get());
  PutTokens(attempt_, rank_, records, prepared.get());
  return prepared;
}

}  // namespace statcollect
