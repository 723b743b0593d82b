#include "bench/engine/read_sum.h"

#include <cstring>
#include <thread>
#include <vector>

namespace statcollect::bench {
namespace {

typedef float Vector __attribute__((vector_size(64)));

// Eight sums hide the latency of the additions.
template <typename V>
[[gnu::always_inline]] inline double SumOf(const unsigned char* data, std::size_t bytes) {
  V sums[8] = {};
  for (std::size_t i = 0; i + sizeof(sums) <= bytes; i += sizeof(sums)) {
    for (int s = 0; s < 8; ++s) {
      V v;
      std::memcpy(&v, data + i + static_cast<std::size_t>(s) * sizeof(V), sizeof(V));
      sums[s] += v;
    }
  }
  double total = 0;
  for (const V& sum : sums) {
    for (std::size_t lane = 0; lane < sizeof(V) / sizeof(float); ++lane)
      total += static_cast<double>(sum[lane]);
  }
  return total;
}

#if defined(__x86_64__)
[[gnu::target("avx512f,prefer-vector-width=512")]] double SumAvx512(const unsigned char* data,
                                                                    std::size_t bytes) {
  return SumOf<Vector>(data, bytes);
}
#endif

double SumPlain(const unsigned char* data, std::size_t bytes) { return SumOf<Vector>(data, bytes); }

double Sum(const unsigned char* data, std::size_t bytes) {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) return SumAvx512(data, bytes);
#endif
  return SumPlain(data, bytes);
}

}  // namespace

double ReadSum(const unsigned char* data, std::size_t bytes, int threads) {
  const std::size_t part = bytes / static_cast<std::size_t>(threads);
  std::vector<double> sums(static_cast<std::size_t>(threads));
  std::vector<std::thread> workers;
  for (std::size_t t = 1; t < sums.size(); ++t) {
    workers.emplace_back([&, t] { sums[t] = Sum(data + t * part, part); });
  }
  sums[0] = Sum(data, part);
  for (std::thread& worker : workers) worker.join();
  double total = 0;
  for (const double sum : sums) total += sum;
  return total;
}

}  // namespace statcollect::bench
