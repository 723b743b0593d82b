// The order within a step: a tensor's stage, the update that it leads to, and its position in a
// report. docs/divergence.md describes it under "Order".
#ifndef STATCOLLECT_SERVER_QUERY_COMPARE_STEP_ORDER_H_
#define STATCOLLECT_SERVER_QUERY_COMPARE_STEP_ORDER_H_

#include <compare>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/records.h"
#include "server/query/reports.h"
#include "server/query/run_view.h"

namespace statcollect::query {

Stage StageOf(const TensorKey& key);

// Weights as loaded and batches: nothing that was recorded computes them.
inline bool IsInput(Stage stage) { return stage == Stage::kWeights || stage == Stage::kBatch; }

// Segment by segment: weights, batch, then by micro-batch forward, loss and backward, then
// gradients, then the optimizer's results. Evaluation comes after training, or before it if it ran
// before it. Gradients and optimizer results follow all micro-batches, whichever one their records
// name. A batch that may have been computed in the step (IsHanded) stands where it was given.
struct ReportOrder {
  std::uint32_t segment = 0;  // of the step, see StepOrder
  int phase = 0;
  std::uint32_t micro_batch = 0;  // in a step of several segments: the pass
  Stage stage = Stage::kUnspecified;
  bool eval = false;
  std::uint64_t position = 0;  // A's order of execution, from 1
  std::uint32_t after = 0;     // missing in A: after `position`, in B's order, from 1
  std::uint32_t rank = 0;
  auto operator<=>(const ReportOrder&) const = default;
  bool IsBeforeTraining() const;  // an evaluation that ran before the first training of the step
};

// Whether it is a batch that what ran before it in the step may have computed: real numbers that a
// model was given in a later call, such as a recurrent state, or a sample that is refined.
bool IsHanded(const Observation& seen);

ReportOrder MakeReportOrder(Stage stage, std::uint32_t micro_batch, bool eval,
                            std::uint64_t position, std::uint32_t rank);
// `before_training`: it ran before the first training forward record of its segment.
ReportOrder MakeReportOrder(const TensorKey& key, std::uint64_t position, std::uint32_t rank,
                            bool before_training = false);

// A position in a step. A segment ends with an update after which training continues in the same
// step: several optimizers (GAN, actor and critic), or several updates of one. A pass begins with a
// forward or batch record after a backward one; passes are numbered from 0 in each segment.
struct Spot {
  std::uint32_t segment = 0, pass = 0;
  auto operator<=>(const Spot&) const = default;
};

// Whether it belongs to a training pass: not evaluation, not a buffer, and not weights as loaded or
// updated.
bool IsOfTraining(const TensorKey& key);

// The segments and passes of one rank's step, from its records. Immutable. Memory: a few bytes per
// segment and pass.
class StepOrder {
 public:
  // `observations`: all records of the step, in the order of execution; only used here.
  explicit StepOrder(std::span<const Observation> observations);

  bool HasSegments() const { return first_training_.size() > 1; }  // more than one
  bool HasTraining() const;  // whether there is a training forward record
  Spot At(std::uint32_t order)
      const;  // monotone; evaluation between two segments belongs to the later one
  bool RanBeforeTraining(std::uint32_t order) const;  // within its segment

  // For one of its own records.
  ReportOrder PlaceOf(const Observation& seen, std::uint32_t rank) const {
    return PlaceAt(At(seen.order), seen.order + 1ull, seen, *this, rank);
  }
  // For a record of its own side `own` that is at `spot` and `position` here.
  ReportOrder PlaceAt(const Spot& spot, std::uint64_t position, const Observation& seen,
                      const StepOrder& own, std::uint32_t rank) const;

 private:
  bool RanAfterTraining(
      std::uint32_t order) const;  // whether it began after training in its segment

  struct Part {
    std::uint32_t begin = 0;  // order
    Spot spot;
  };
  std::vector<Part> parts_;  // ascending; the first begins at order 0
  std::vector<std::optional<std::uint32_t>> first_training_;  // order, by segment
};

// "output blocks.1.attn[0] micro-batch 1 call 0 (eval)": the micro-batch only if it is not 0, the
// mode only if it is not train.
std::string Label(const TensorKey& key);
// The same, whatever its call, micro-batch and mode.
std::string SpreadName(Kind kind, const std::string& name, const std::string& output_path);

// Sets only the identity; reason, distance and sides are unset.
Divergence MakeRow(const TensorDef& def, std::uint64_t step, std::uint32_t rank);

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_COMPARE_STEP_ORDER_H_
