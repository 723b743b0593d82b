// The order within a step: which stage a tensor belongs to, which update of the step it leads to, and where
// its row stands in a report. In words: docs/divergence.md, "Order".
#ifndef STATCOLLECT_SERVER_QUERY_COMPARE_STEP_ORDER_H_
#define STATCOLLECT_SERVER_QUERY_COMPARE_STEP_ORDER_H_

#include <compare>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/records.h"
#include "server/query/reports.h"
#include "server/query/run_view.h"

namespace statcollect::query {

Stage StageOf(const TensorKey& key);

// Scalars that are compared in stage loss: names that end in "loss" ("loss", "train/loss", "eval_loss"), in
// any case.
bool IsLoss(std::string_view name);

// Segment by segment: weights, then batch, then by micro-batch forward, loss, backward, then gradients, then
// the optimizer's results; evaluation after training, or before it if it ran before it. Gradients and
// optimizer follow every micro-batch, whichever their records name.
struct ReportOrder {
  std::uint32_t segment = 0;  // of the step: StepOrder
  int phase = 0;
  std::uint32_t micro_batch = 0;  // in a step of several segments: the pass
  Stage stage = Stage::kUnspecified;
  bool eval = false;
  std::uint64_t position = 0;  // A's order of execution, from 1
  std::uint32_t after = 0;     // missing in A: behind `position`, in B's order, from 1
  std::uint32_t rank = 0;
  auto operator<=>(const ReportOrder&) const = default;
};

ReportOrder MakeReportOrder(Stage stage, std::uint32_t micro_batch, bool eval, std::uint64_t position,
                            std::uint32_t rank);
// `before_training`: it ran before the first forward record in training of its segment.
ReportOrder MakeReportOrder(const TensorKey& key, std::uint64_t position, std::uint32_t rank,
                            bool before_training = false);

// How far a step has come. A segment ends with an update after which training goes on in the same step:
// several optimizers (GAN, actor and critic), or several updates of one. A pass begins with a forward or
// batch record after a backward one; passes are counted from 0 in each segment.
struct Spot {
  std::uint32_t segment = 0, pass = 0;
  auto operator<=>(const Spot&) const = default;
};

// Whether it belongs to a pass of training: neither evaluation nor a buffer, nor weights as loaded or
// updated.
bool IsOfTraining(const TensorKey& key);

// The course of one rank's step, from its records. Immutable. Memory: a few bytes for each segment and pass.
class StepOrder {
 public:
  // `observations`: all of the step, in the order of execution; read here only.
  explicit StepOrder(std::span<const Observation> observations);

  bool HasSegments() const { return first_training_.size() > 1; }  // several
  bool HasTraining() const;                                        // a forward record in training
  Spot At(std::uint32_t order) const;  // monotone; evaluation between two segments is of the later one
  bool RanBeforeTraining(std::uint32_t order) const;  // of its segment

  // Of one of its own records.
  ReportOrder PlaceOf(const TensorKey& key, std::uint32_t order, std::uint32_t rank) const {
    return PlaceAt(At(order), order + 1ull, key, *this, order, rank);
  }
  // Of a record that stands at `spot` and `position` here, and ran at `order` on its own side.
  ReportOrder PlaceAt(const Spot& spot, std::uint64_t position, const TensorKey& key, const StepOrder& own,
                      std::uint32_t order, std::uint32_t rank) const;

 private:
  bool RanAfterTraining(std::uint32_t order) const;  // began in its segment

  struct Part {
    std::uint32_t begin = 0;  // order
    Spot spot;
  };
  std::vector<Part> parts_;                                   // ascending, the first from order 0
  std::vector<std::optional<std::uint32_t>> first_training_;  // order, by segment
};

// "output blocks.1.attn[0] micro-batch 1 call 0 (eval)": micro-batch only if not 0, mode only if not train.
std::string Label(const TensorKey& key);

// Names it; no reason, distance or sides yet.
Divergence MakeRow(const TensorDef& def, std::uint64_t step, std::uint32_t rank);

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_COMPARE_STEP_ORDER_H_
