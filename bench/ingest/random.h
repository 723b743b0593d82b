// Random numbers by counter: what a record holds depends on its place only, never on who asks when.
#ifndef STATCOLLECT_BENCH_INGEST_RANDOM_H_
#define STATCOLLECT_BENCH_INGEST_RANDOM_H_

#include <cstdint>

namespace statcollect::bench {

// Steele, Lea, Flood: SplitMix64's output function.
inline std::uint64_t Mix(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

}  // namespace statcollect::bench

#endif  // STATCOLLECT_BENCH_INGEST_RANDOM_H_
