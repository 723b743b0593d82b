// The tensors that the load generator pretends to observe: a stack of transformer blocks, in order
// of execution forward outputs, their gradients backwards, weight gradients, weights.
#ifndef STATCOLLECT_BENCH_INGEST_NETWORK_H_
#define STATCOLLECT_BENCH_INGEST_NETWORK_H_

#include <cstdint>
#include <vector>

#include "common/records.h"

namespace statcollect::bench {

// What the statistics of one activation look like, over all steps and ranks.
struct Profile {
  std::uint64_t numel = 0;
  double std = 0;          // of its elements, about; drifts by a few per cent
  double extreme = 0;      // its largest element, in standard deviations
  bool bf16 = false;       // else f32
  bool rectified = false;  // about half of the elements are 0, the rest above
  bool fixed = false;      // bit-identical in every step
};

// Immutable; shared by all streams.
class Network {
 public:
  // `repeat`: the share of activations that are fixed; the last ones of a step, which are weights.
  Network(std::uint32_t activations, double repeat);

  std::uint32_t size() const { return static_cast<std::uint32_t>(profiles_.size()); }
  const std::vector<TensorDef>& activations() const { return activations_; }
  const std::vector<Layout>& layouts() const { return layouts_; }
  const std::vector<std::uint32_t>& layout_of() const { return layout_of_; }  // by activation
  const std::vector<Profile>& profiles() const { return profiles_; }

 private:
  void Add(const TensorDef& def, const Layout& layout);

  std::vector<TensorDef> activations_;
  std::vector<Layout> layouts_;
  std::vector<std::uint32_t> layout_of_;
  std::vector<Profile> profiles_;
};

}  // namespace statcollect::bench

#endif  // STATCOLLECT_BENCH_INGEST_NETWORK_H_
