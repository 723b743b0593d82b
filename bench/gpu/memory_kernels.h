// What the engine is measured with and beside: numbers in the device's memory, and reading it
// without computing anything.
#ifndef STATCOLLECT_BENCH_GPU_MEMORY_KERNELS_H_
#define STATCOLLECT_BENCH_GPU_MEMORY_KERNELS_H_

#include <cstddef>

// A float of this layout; no exponent bits: any bits of 64.
struct NumberFormat {
  int exponent_bits = 0, mantissa_bits = 0;
};

// Fills memory (`bytes` a multiple of 8) with random finite numbers: signs and mantissas evenly,
// exponents such that most numbers are between a quarter and two, as activations are. In the
// default stream.
void FillRandom(void* memory, std::size_t bytes, NumberFormat format);

// Enqueues a kernel that reads memory (`bytes` a multiple of 16) and writes nothing, in the default
// stream: no kernel that looks at all of a tensor is faster. `processors`: of the device.
void ReadOnly(const void* memory, std::size_t bytes, int processors);

#endif  // STATCOLLECT_BENCH_GPU_MEMORY_KERNELS_H_
