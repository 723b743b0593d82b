// Noise in the last places of a tensor, for twins of a run (docs/decisions/0055-twins.md): a
// function of a key, the step, an element's index in the logical tensor and its own bits, so that
// everything that computes the same tensor again gets the same noise: recomputation, replicas,
// other layouts of memory.
//
//   words  = MixBits(key + step * 0x9e3779b97f4a7c15): the lower 32 bits, the upper 32 bits
//   x      = (index * kNoiseIndexFactor ^ lower) + bits       (mod 2^32; float64: both halves of
//   its bits, xor) x     ^= x >> 16; x *= kNoiseFactors[0]; x ^= x >> 15; x ^= upper; x *=
//   kNoiseFactors[1]; x ^= x >> 16 n      = (x >> 7 | 1) / 2^24, x signed: uniform in (-1, 1),
//   never 0 result = v + v * n * min(ulps * eps, kNoiseMax), rounded to the type
//
// float16 and bfloat16 are computed in float32. What is not finite, or would become so, stays.
// Complex numbers are two components with the indexes 2 i and 2 i + 1.
// agent/python/statagent/_native/torch_noise.py is the same in operators of torch, bit for bit.
#ifndef STATCOLLECT_AGENT_STATS_CPU_NOISE_H_
#define STATCOLLECT_AGENT_STATS_CPU_NOISE_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "common/status.h"
#include "common/types.h"

namespace statcollect::stats {

inline constexpr double kNoiseMax =
    0.25;  // of a value: more would be no rounding, whatever the type

// Two tensors of one shape, in components. Strides in components; those of `index` say where a
// component lies in the logical tensor, whose component 0 has index 0. Borrowed.
struct NoiseLayout {
  DType dtype = DType::kUnspecified;  // float64, float32, float16, bfloat16
  std::span<const std::int64_t> shape, from_strides, to_strides, index_strides;
  std::uint64_t first_index = 0;
};

struct Noise {
  std::uint64_t key = 0;
  std::uint64_t step = 0;
  double ulps = 1;
};

// kInvalidArgument: another dtype; different numbers of dimensions, more than kDimsMax, or a
// negative size.
Status Validate(const NoiseLayout& layout);

// Writes the values with noise, or with `difference` what they differ by (exact: value + difference
// is the value with noise), to `to`. `from` and `to` are the same or do not overlap. Any
// floating-point environment; it is as before on return. Preconditions: Validate(layout) is OK;
// both have the layout's components. Cost: about 0.6 ns per component (AVX2, float32) where the
// innermost strides are 1. No allocation.
void AddNoise(const NoiseLayout& layout, const void* from, void* to, const Noise& noise,
              bool difference) noexcept;

}  // namespace statcollect::stats

#endif  // STATCOLLECT_AGENT_STATS_CPU_NOISE_H_
