// The key frame that relative blocks of the fuzz corpus lean on, and a later block of the same
// activations.
#ifndef STATCOLLECT_TESTS_FUZZ_BLOCKS_H_
#define STATCOLLECT_TESTS_FUZZ_BLOCKS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "server/store/codec/block_columns.h"

namespace statcollect::fuzz {

// Ten records; `step` changes most of them.
inline StatColumns Columns(std::uint64_t step) {
  StatColumns columns;
  columns.sketch_width = 16;
  for (std::uint32_t i = 0; i < 10; ++i) {
    columns.activation.push_back(i);
    columns.layout.push_back(i % 3);
    columns.order.push_back(i);
    columns.step.push_back(step);
    TensorStats s{.numel = 64u << i, .has_finite = i != 4, .hash = i * 0x9e3779b97f4a7c15u};
    if (s.has_finite) {
      s.neg = 20;
      s.pos = s.numel - s.neg;
      s.min = -1;
      s.max = 1.5;
      s.mean = i % 3 == 0 ? 0.25 : 0.01 * static_cast<double>(step + i);
      s.std = 0.5 + (i % 3 == 0 ? 0 : 0.001 * static_cast<double>(step));
      s.l1 = 3;
      s.l2 = 4.5;
    } else {
      s.nan = s.numel;
    }
    columns.stats.push_back(s);
    for (int k = 0; k < 16; ++k) columns.sketch.push_back(i == 7 ? 0.1 * k : 0.5 * k);
    columns.sample_count.push_back(i == 2 ? 2 : 0);
  }
  columns.samples = {1.0, -0.0};
  return columns;
}

inline BlockColumns Block(std::uint64_t step) {
  const StatColumns columns = Columns(step);
  std::vector<std::uint32_t> indexes;
  std::vector<std::size_t> sample_at;
  for (std::uint32_t i = 0; i < columns.size(); ++i) {
    indexes.push_back(i);
    sample_at.push_back(i <= 2 ? 0 : 2);
  }
  BlockColumns block;
  block.Take(columns, indexes, sample_at);
  return block;
}

}  // namespace statcollect::fuzz

#endif  // STATCOLLECT_TESTS_FUZZ_BLOCKS_H_
