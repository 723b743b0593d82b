// Reads a step of one rank of both runs as pairs: tensors and losses.
#ifndef STATCOLLECT_SERVER_QUERY_VERDICT_STEP_PAIRS_H_
#define STATCOLLECT_SERVER_QUERY_VERDICT_STEP_PAIRS_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "common/status.h"
#include "server/query/compare/diff_plan.h"
#include "server/query/compare/paired_step.h"
#include "server/query/compare/rank_step_diff.h"
#include "server/query/pairs/tensor_pair.h"
#include "server/query/verdict/loss_scale.h"

namespace statcollect::query {

// Movable: what `pairs` point to moves with it.
struct StepPairs {
  StepData a, b;
  std::vector<ScalarRecord> losses_a, losses_b;
  PairedStep paired;
  std::vector<TensorPair>
      pairs;  // with the losses at their places; gradients of B divided by the ratio of loss scales
  std::deque<Divided> divided;  // what gradients point to if the loss scales differ
  LossScales loss_scales;
};

// All references must outlive this. Thread-safe.
class StepPairsReader {
 public:
  enum class Order : std::uint8_t {
    kExecution,  // A's
    kReport,  // as a report lists them: gradients of weights and the optimizer's results after all
              // passes
  };
  // `place`: the rank's position in the plan.
  StepPairsReader(const DiffContext& context, const DiffPlan& plan, std::size_t place, Order order)
      : context_(context), plan_(plan), place_(place), ranks_(plan.ranks[place]), order_(order) {}

  // A stored step of the plan. Tensors without a counterpart are left out. Cost: reads the step of
  // both runs.
  Status Read(std::uint64_t step, StepPairs& to) const;

 private:
  Status Pair(std::uint64_t step, StepPairs& to) const;
  void Arrange(StepPairs& to) const;
  void AddLosses(StepPairs& to) const;

  const DiffContext& context_;
  const DiffPlan& plan_;
  const std::size_t place_;
  const RankPair ranks_;
  const Order order_;
};

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_VERDICT_STEP_PAIRS_H_
