// The question order within a step: which stage a tensor belongs to, and where its row stands in a report.
#ifndef STATCOLLECT_SERVER_QUERY_STEP_ORDER_H_
#define STATCOLLECT_SERVER_QUERY_STEP_ORDER_H_

#include <compare>
#include <cstdint>
#include <string>
#include <string_view>

#include "common/records.h"
#include "server/query/reports.h"

namespace statcollect::query {

Stage StageOf(const ActivationKey& key);

// Scalars that are compared in stage loss: names that end in "loss" ("loss", "train/loss", "eval_loss"), in
// any case.
bool IsLoss(std::string_view name);

// Weights, then batch, then by micro-batch forward, loss, backward, then gradients, then the optimizer's
// results; evaluation after training, or before it if it ran before it. Gradients and optimizer follow every
// micro-batch, whichever their records name.
struct Place {
  int phase = 0;
  std::uint32_t micro_batch = 0;
  Stage stage = Stage::kUnspecified;
  bool eval = false;
  std::uint64_t position = 0;  // A's order of execution, from 1
  std::uint32_t after = 0;     // missing in A: behind `position`, in B's order, from 1
  std::uint32_t rank = 0;
  auto operator<=>(const Place&) const = default;
};

Place MakePlace(Stage stage, std::uint32_t micro_batch, bool eval, std::uint64_t position,
                std::uint32_t rank);
// `before_training`: it ran before the step's first forward record in training.
Place MakePlace(const ActivationKey& key, std::uint64_t position, std::uint32_t rank,
                bool before_training = false);

// "output blocks.1.attn[0] micro-batch 1 call 0 (eval)": micro-batch only if not 0, mode only if not train.
std::string Label(const ActivationKey& key);

// Names it; no reason, distance or sides yet.
Divergence MakeRow(const ActivationDef& def, std::uint64_t step, std::uint32_t rank);

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_STEP_ORDER_H_
