// Statistics of the network's tensors, step for step, in columns, cheaply: about 30 ns a record.
#ifndef STATCOLLECT_BENCH_INGEST_RECORD_MAKER_H_
#define STATCOLLECT_BENCH_INGEST_RECORD_MAKER_H_

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "bench/ingest/network.h"

namespace statcollect::bench {

// Columns that differ from record to record; all others are constant over steps or zero.
struct MadeColumns {
  std::vector<std::uint64_t> zero, neg, pos;
  std::vector<double> min, max, mean, std, l1, l2;
  std::vector<std::uint64_t> hash;
  std::vector<float> sketch;  // k a record

  std::size_t size() const { return hash.size(); }
  void Resize(std::size_t records, std::uint32_t k);
};

struct MakerOptions {
  std::uint64_t seed = 1;
  std::uint32_t sketch = 16;  // k: 0, 16, 32 or 64
  // From this step on every record differs from those of the same seed without it.
  std::uint64_t differ_from = std::numeric_limits<std::uint64_t>::max();
  std::uint64_t salt = 0;  // another difference from that step on
  // Of tensor parallelism: the ranks hold parts of rank 0's tensors, whose statistics add up to
  // those (the hash exactly). Divides 8, at most as many as there are ranks.
  std::uint32_t shards = 1;
};

// Immutable; any thread. Equal options and network: bit-identical records.
class RecordMaker {
 public:
  // `network` outlives it.
  RecordMaker(const Network& network, const MakerOptions& options);

  // Writes records of activations first .. first + n - 1 into out[at ..], which is large enough.
  void Make(std::uint32_t rank, std::uint64_t step, std::uint32_t first, std::uint32_t n,
            std::size_t at, MadeColumns* out) const;
  std::uint32_t sketch() const { return options_.sketch; }
  std::uint32_t shards() const { return options_.shards; }
  const Network& network() const { return network_; }

 private:
  void Cut(std::uint32_t rank, std::size_t at, std::uint32_t n, MadeColumns* out) const;

  const Network& network_;
  const MakerOptions options_;
  std::vector<float> normals_;  // a pool, read from random places
};

}  // namespace statcollect::bench

#endif  // STATCOLLECT_BENCH_INGEST_RECORD_MAKER_H_
