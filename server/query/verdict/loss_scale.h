// The scale by which a run multiplied its losses (GradScaler). Gradients of outputs carry it,
// gradients of weights are recorded without it.
#ifndef STATCOLLECT_SERVER_QUERY_VERDICT_LOSS_SCALE_H_
#define STATCOLLECT_SERVER_QUERY_VERDICT_LOSS_SCALE_H_

#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/records.h"
#include "server/query/pairs/tensor_pair.h"

namespace statcollect::query {

// Values of one step; empty: none was recorded, so the losses are not scaled.
struct LossScales {
  std::uint64_t step = 0;
  std::optional<double> a, b;

  static LossScales Of(std::uint64_t step, std::span<const ScalarRecord> a,
                       std::span<const ScalarRecord> b);
  // B's over A's; empty if they are the same.
  std::optional<double> Ratio() const;
  // One sentence.
  std::string Text(const std::string& run_a, const std::string& run_b) const;
};

// Statistics and sketch of a tensor divided by a number.
struct Divided {
  TensorStats stats;
  std::vector<double> sketch;
};

// Divides B's gradients of outputs by `ratio` > 0 and measures them again. `storage` outlives the
// pairs.
void DivideGradients(double ratio, std::vector<TensorPair>& pairs, std::deque<Divided>& storage);

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_VERDICT_LOSS_SCALE_H_
