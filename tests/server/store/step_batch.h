// Batches of one step for tests of the store, and the session state after them.
#ifndef STATCOLLECT_TESTS_SERVER_STORE_STEP_BATCH_H_
#define STATCOLLECT_TESTS_SERVER_STORE_STEP_BATCH_H_

#include <cstdint>
#include <string>

#include "server/store/store.h"

namespace statcollect {

// Activations 0..count-1 of one step, values derived from step and id, and a scalar, an event and
// the step's end.
inline RecordBatch MakeBatch(std::uint64_t first_seq, std::uint64_t step,
                             std::uint32_t first_activation, std::uint32_t count) {
  RecordBatch batch;
  batch.first_seq = first_seq;
  batch.layouts = {{.id = 0, .dtype = DType::kF32, .shape = {2}}};
  batch.stats.sketch_width = 16;
  for (std::uint32_t i = 0; i < count; ++i) {
    const std::uint32_t id = first_activation + i;
    batch.activations.push_back(
        {.id = id, .key = {.name = "layer." + std::to_string(id), .kind = Kind::kOutput}});
    batch.stats.activation.push_back(id);
    batch.stats.layout.push_back(0);
    batch.stats.step.push_back(step);
    batch.stats.order.push_back(id);
    batch.stats.stats.push_back({.numel = 2,
                                 .pos = 2,
                                 .has_finite = true,
                                 .min = 1,
                                 .max = double(id),
                                 .hash = step * 1000 + id});
    for (int k = 0; k < 16; ++k) batch.stats.sketch.push_back(k * 0.5 + id);
    batch.stats.sample_count.push_back(0);
  }
  batch.scalars = {{.name = "loss", .step = step, .value = 0.5}};
  batch.events = {{.kind = "note", .step = step, .text = "t"}};
  batch.steps = {{.step = step, .unix_nanos = 5}};
  return batch;
}

inline RankMeta MetaOf(std::uint32_t rank, std::uint64_t durable_seq) {
  RankMeta meta;
  meta.info.rank = rank;
  meta.durable_seq = durable_seq;
  return meta;
}

// What store_appender appends: records a step.
inline constexpr std::uint32_t kAppendedActivations = 10;
inline constexpr std::uint64_t kAppendedRecords = kAppendedActivations + 3;

}  // namespace statcollect

#endif  // STATCOLLECT_TESTS_SERVER_STORE_STEP_BATCH_H_
