// Valid record batches for tests, from a seed: the same seed gives the same batch.
#ifndef STATCOLLECT_TESTS_SUPPORT_RANDOM_BATCH_H_
#define STATCOLLECT_TESTS_SUPPORT_RANDOM_BATCH_H_

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "common/names.h"
#include "common/records.h"

namespace statcollect::testing {

inline TensorDef MakeActivation(std::uint32_t id, Kind kind = Kind::kOutput) {
  TensorDef def;
  def.id = id;
  def.key.name = "blocks." + std::to_string(id) + ".ln";
  def.key.kind = kind;
  def.key.mode = Mode::kTrain;
  def.parent = "blocks." + std::to_string(id);
  def.class_name = "LayerNorm";
  def.depth = 3;
  return def;
}

inline Layout MakeLayout(std::uint32_t id, DType dtype = DType::kF32,
                         std::vector<std::int64_t> shape = {4, 8}) {
  return Layout{.id = id, .dtype = dtype, .shape = std::move(shape)};
}

inline std::uint64_t Components(const Layout& layout) {
  std::uint64_t n = IsComplex(layout.dtype) ? 2 : 1;
  for (const std::int64_t size : layout.shape) n *= static_cast<std::uint64_t>(size);
  return n;
}

// Statistics that are consistent with `components` elements.
inline TensorStats MakeStats(const Layout& layout, std::mt19937_64& rng) {
  const std::uint64_t components = Components(layout);
  TensorStats s;
  s.numel = components / (IsComplex(layout.dtype) ? 2 : 1);
  const bool all_nan = components > 0 && rng() % 11 == 0;
  if (all_nan) {
    s.nan = components;
  } else {
    s.nan = rng() % 7 == 0 ? std::min<std::uint64_t>(components / 4, 3) : 0;
    s.zero = components / 8;
    s.neg = (components - s.nan - s.zero) / 2;
    s.pos = components - s.nan - s.zero - s.neg;
  }
  s.has_finite = s.nan + s.pos_inf + s.neg_inf < components;
  if (s.has_finite) {
    std::normal_distribution<double> normal;
    s.min = -std::abs(normal(rng)) - 1;
    s.max = std::abs(normal(rng)) + 1;
    s.mean = normal(rng);
    s.std = std::abs(normal(rng));
    s.l1 = std::abs(normal(rng)) * 10;
    s.l2 = std::abs(normal(rng)) * 4;
  }
  s.hash = rng();
  return s;
}

// Appends one statistics record to the batch. Sketch sums are float32 values unless the dtype keeps
// wide ones.
inline void AddStat(RecordBatch* batch, std::uint32_t activation, const Layout& layout,
                    std::uint64_t step, std::uint32_t order, std::mt19937_64& rng,
                    std::uint32_t sketch_width = 16) {
  StatColumns& c = batch->stats;
  c.sketch_width = sketch_width;
  c.activation.push_back(activation);
  c.layout.push_back(layout.id);
  c.step.push_back(step);
  c.order.push_back(order);
  c.stats.push_back(MakeStats(layout, rng));
  std::normal_distribution<double> normal;
  for (std::uint32_t i = 0; i < sketch_width; ++i) {
    const double sum = normal(rng);
    c.sketch.push_back(HasWideSketch(layout.dtype) ? sum
                                                   : static_cast<double>(static_cast<float>(sum)));
  }
  c.sample_count.push_back(0);
}

struct BatchShape {
  std::uint32_t activations = 8;  // defined (when define) and observed once a step
  std::uint64_t first_step = 0;
  std::uint64_t steps = 2;
  std::uint32_t sketch_width = 16;
  bool define = true;
};

// Layouts 0..3 of RandomBatch: f32, f64, bf16 and c64.
inline std::vector<Layout> StandardLayouts() {
  return {MakeLayout(0), MakeLayout(1, DType::kF64, {16}), MakeLayout(2, DType::kBf16, {2, 3, 5}),
          MakeLayout(3, DType::kC64, {7})};
}

// Memory, densities, settings and exponents with every kind of value, for a batch that has none.
// Layout 1 and activation 0 must be defined, as RandomBatch does.
inline void AddObservations(RecordBatch* batch, std::uint64_t step) {
  MemoryRecord memory{
      .step = step, .micro_batch = 2, .phase = MemoryPhase::kPostForward, .device = "cuda:1"};
  for (int i = 0; i < kMemoryQuantityCount; i += 2) {
    memory.present |= BitOf(static_cast<MemoryQuantity>(i));
    memory.bytes[static_cast<std::size_t>(i)] = (std::int64_t{1} << (3 * i)) + i;
  }
  MemoryRecord module{
      .step = step, .phase = MemoryPhase::kPostForward, .device = "cpu", .module = "blocks.1"};
  module.present = BitOf(MemoryQuantity::kAllocatedDelta) | BitOf(MemoryQuantity::kPeakDelta);
  module.bytes[static_cast<std::size_t>(MemoryQuantity::kAllocatedDelta)] = -4096;
  batch->memory = {memory, module, {.step = step + 1, .phase = MemoryPhase::kPostOptimizer}};
  batch->densities = {
      {step, 0, "input_ids", DensityType::kEmbed, 1, 6, 12, {3, 2, 1}},
      {step + 1, 1, "labels", DensityType::kLabel, -100, 0, 0, {}},
  };
  batch->settings = {{"model.layers", "4"}, {"empty", ""}};
  batch->exponents = {
      {.step = step, .activation = 0, .layout = 1, .lowest = -25, .counts = {3, 0, 12}},
      {.step = step + 1, .activation = 0, .layout = 1, .lowest = 0, .counts = {}},
  };
  TokenRecord rows{.step = step,
                   .tap = "blocks.0",
                   .call = 2,
                   .dtype = DType::kBf16,
                   .columns = 128,
                   .first_column = 64};
  for (std::uint32_t i = 0; i < 3; ++i) {
    rows.rows.push_back({.key = ~0ull - i,
                         .position = 300 * i,
                         .stats = {.l2 = 1.5f, .hash = 7u + i, .sketch = {-1, 2.5f, 0, 1e30f}}});
  }
  batch->tokens = {rows,
                   {.step = step + 1,
                    .tap = "logprob",
                    .dtype = DType::kF32,
                    .columns = 1,
                    .rows = {{.key = 1, .stats = {.l2 = 2, .hash = 3, .sketch = {-2}}}}}};
}

// A whole number of steps of one rank, with a scalar and a step end each, and one event.
inline RecordBatch RandomBatch(std::uint64_t seed, std::uint64_t first_seq,
                               const BatchShape& shape = {}) {
  std::mt19937_64 rng(seed);
  RecordBatch batch;
  batch.first_seq = first_seq;
  const std::vector<Layout> layouts = StandardLayouts();
  if (shape.define) {
    batch.layouts = layouts;
    for (std::uint32_t i = 0; i < shape.activations; ++i)
      batch.activations.push_back(MakeActivation(i));
  }
  for (std::uint64_t step = shape.first_step; step < shape.first_step + shape.steps; ++step) {
    for (std::uint32_t i = 0; i < shape.activations; ++i) {
      AddStat(&batch, i, layouts[i % layouts.size()], step, i, rng, shape.sketch_width);
    }
    batch.scalars.push_back({"loss", step, 0, 1.0 / static_cast<double>(step + 1)});
    batch.steps.push_back({step, static_cast<std::int64_t>(step) * 1'000'000, 1});
  }
  batch.events.push_back(
      {"graph_transition", shape.first_step, 17, "a module appeared", {{"module", "blocks.0"}}});
  return batch;
}

inline bool operator==(const StatColumns& a, const StatColumns& b) {
  auto counts = [](const StatColumns& c) {
    std::vector<std::uint32_t> n = c.sample_count;
    n.resize(c.size(), 0);
    return n;
  };
  return a.activation == b.activation && a.layout == b.layout && a.step == b.step &&
         a.order == b.order && a.stats == b.stats && a.sketch_width == b.sketch_width &&
         a.sketch == b.sketch && counts(a) == counts(b) && a.samples == b.samples;
}

}  // namespace statcollect::testing

#endif  // STATCOLLECT_TESTS_SUPPORT_RANDOM_BATCH_H_
