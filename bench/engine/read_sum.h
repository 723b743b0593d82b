// The limit of the engine's benchmarks: the fastest plain sum of an array that this processor
// allows.
#ifndef STATCOLLECT_BENCH_ENGINE_READ_SUM_H_
#define STATCOLLECT_BENCH_ENGINE_READ_SUM_H_

#include <cstddef>

namespace statcollect::bench {

// Sum of `bytes` bytes taken as float32, over `threads` threads; bytes a multiple of 512 * threads.
// One read of the memory and one addition a vector.
double ReadSum(const unsigned char* data, std::size_t bytes, int threads);

}  // namespace statcollect::bench

#endif  // STATCOLLECT_BENCH_ENGINE_READ_SUM_H_
