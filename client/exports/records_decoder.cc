#include "client/exports/records_decoder.h"

#include <algorithm>

#include "proto/convert.h"

namespace statcollect::client {

Status RecordsDecoder::Take(const v1::ReadRecordsResponse& message) {
  Definitions& definitions =
      definitions_[{message.attempt(), message.rank(), message.ranks_size() > 0}];
  auto batch = FromWire(message.records(), definitions.layouts);
  if (!batch.ok()) return {Code::kDataLoss, "the collector's answer: " + batch.status().message()};
  definitions.activations.insert(definitions.activations.end(), batch->activations.begin(),
                                 batch->activations.end());
  definitions.layouts.insert(definitions.layouts.end(), batch->layouts.begin(),
                             batch->layouts.end());
  if (batch->records() == 0) return Status::Ok();
  records_ += batch->records();
  ranks_.insert(message.rank());
  ranks_.insert(message.ranks().begin(), message.ranks().end());
  STATCOLLECT_RETURN_IF_ERROR(WriteStats(message, batch->stats, definitions));
  const auto write = [&](const auto& records) -> Status {
    for (const auto& record : records) {
      NoteStep(record.step);
      STATCOLLECT_RETURN_IF_ERROR(to_.Write(message.rank(), record));
    }
    return Status::Ok();
  };
  STATCOLLECT_RETURN_IF_ERROR(write(batch->scalars));
  STATCOLLECT_RETURN_IF_ERROR(write(batch->events));
  STATCOLLECT_RETURN_IF_ERROR(write(batch->memory));
  STATCOLLECT_RETURN_IF_ERROR(write(batch->densities));
  return write(batch->steps);
}

Status RecordsDecoder::WriteStats(const v1::ReadRecordsResponse& message, const StatColumns& stats,
                                  const Definitions& definitions) {
  std::size_t sample = 0;
  for (std::size_t i = 0; i < stats.size(); ++i) {
    if (stats.activation[i] >= definitions.activations.size()) {
      return {Code::kDataLoss,
              "the collector's answer: activation " + std::to_string(stats.activation[i]) +
                  " is not defined; are statctl and statcollectord of the same version?"};
    }
    const Observation observation{
        .rank = message.rank(),
        .ranks = {message.ranks().data(), static_cast<std::size_t>(message.ranks_size())},
        .step = stats.step[i],
        .order = stats.order[i],
        .def = &definitions.activations[stats.activation[i]],
        .layout = &definitions.layouts[stats.layout[i]],
        .stats = &stats.stats[i],
        .sketch = stats.SketchOf(i),
        .samples = std::span<const double>(stats.samples).subspan(sample, stats.sample_count[i])};
    sample += stats.sample_count[i];
    NoteStep(observation.step);
    STATCOLLECT_RETURN_IF_ERROR(to_.Write(observation));
  }
  return Status::Ok();
}

void RecordsDecoder::NoteStep(std::uint64_t step) {
  if (!steps_) steps_ = {step, step};
  steps_->first = std::min(steps_->first, step);
  steps_->second = std::max(steps_->second, step);
}

}  // namespace statcollect::client
