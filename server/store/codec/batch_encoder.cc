#include "server/store/codec/batch_encoder.h"

#include "common/overloaded.h"
#include "server/store/codec/catalogue.h"
#include "server/store/codec/sealed.h"

namespace statcollect {
namespace {

using Rows = std::vector<EncodedRow>;

// `seq`: the record's number.
template <typename Record>
void AddRow(const Record& record, std::uint64_t seq, Rows* to) {
  to->push_back({.family = kKindOf<Record>.family,
                 .step = record.step,
                 .item = seq,
                 .value = Encode(record),
                 .name = {}});
}

void AddRow(const StepRecord& end, std::uint64_t, Rows* to) { AddRow<StepRecord>(end, 0, to); }

void AddRow(const ExponentRecord& record, std::uint64_t, Rows* to) {
  AddRow<ExponentRecord>(record, record.activation, to);
}

void AddRow(const SettingRecord& setting, std::uint64_t seq, Rows* to) {
  to->push_back(
      {.family = RowFamily::kSetting, .item = seq, .value = Encode(setting), .name = setting.name});
}

void AddRow(const CaptureChunk& chunk, std::uint64_t, Rows* to) {
  const std::uint64_t item = std::uint64_t{chunk.activation} << 32 | chunk.offset;
  const CaptureHead head{.layout = chunk.layout,
                         .elements = chunk.elements,
                         .bytes = static_cast<std::uint32_t>(chunk.data.size())};
  to->push_back({.family = RowFamily::kCaptureHead,
                 .step = chunk.step,
                 .item = item,
                 .value = Encode(head),
                 .name = {}});
  to->push_back({.family = RowFamily::kCaptureData,
                 .step = chunk.step,
                 .item = item,
                 .value = Seal(kCaptureDataVersion, chunk.data),
                 .name = {}});
}

template <typename Def>
void AddDefinitions(RowFamily family, const std::vector<Def>& defs, Rows* to) {
  for (const Def& def : defs)
    to->push_back({.family = family, .item = def.id, .value = Encode(def), .name = {}});
}

}  // namespace

std::unique_ptr<PreparedBatch> BatchEncoder::Prepare(const RecordBatch& records) {
  auto batch = std::make_unique<EncodedBatch>();
  AddDefinitions(RowFamily::kActivation, records.activations, &batch->rows);
  AddDefinitions(RowFamily::kLayout, records.layouts, &batch->rows);
  std::uint64_t seq = records.first_seq;
  ForEachKind(records, Overloaded{[&](const StatColumns& stats) {
                                    encoder_.Encode(stats, &batch->blocks);
                                    seq += stats.size();
                                  },
                                  [&](const auto& kind) {
                                    for (const auto& record : kind)
                                      AddRow(record, seq++, &batch->rows);
                                  }});
  return batch;
}

}  // namespace statcollect
