// The tensors of a step that both runs have, side by side: the one place where a step's records are
// paired.
#ifndef STATCOLLECT_SERVER_QUERY_PAIRS_PAIRED_STEP_H_
#define STATCOLLECT_SERVER_QUERY_PAIRS_PAIRED_STEP_H_

#include <cstdint>
#include <deque>
#include <span>
#include <utility>
#include <vector>

#include "server/query/compare/alignment.h"
#include "server/query/compare/fused_pair.h"
#include "server/query/pairs/tensor_pair.h"
#include "server/query/run_view.h"

namespace statcollect::query {

// Records of a step by the id of their activation; null where the step has none.
using ById = std::vector<const Observation*>;

// `size`: more than any id.
ById IndexById(const StepData& step, std::size_t size);

// One step of a rank. Invariant: a tensor of A is in at most one pair. Parts that match only
// together (a fused module against its parts) are one pair, in which both sides are made
// comparable. What only one run has is left out. Borrows the steps and the alignment.
class PairedStep {
 public:
  PairedStep() = default;
  // In A's order of execution. Cost: a look-up and a distance for each record of A.
  PairedStep(const StepData& a, const StepData& b, const Alignment& alignment);
  PairedStep(PairedStep&&) = default;
  PairedStep& operator=(PairedStep&&) = default;

  // Once. They stay valid as long as this, wherever it is moved.
  std::vector<TensorPair> TakePairs() { return std::move(pairs_); }
  // What another run recorded in place of A's side of each of `pairs`, made comparable with it in
  // the same way; without a definition if it recorded nothing there, and for losses. `others`: its
  // records by A's ids, which must outlive this.
  std::vector<Observation> InPlaceOfA(std::span<const TensorPair> pairs, const ById& others);

 private:
  const Alignment* alignment_ = nullptr;
  std::vector<TensorPair> pairs_;
  ById of_b_;
  std::deque<FusedPair> fused_;  // what pairs of groups, and answers about them, point to
};

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_PAIRS_PAIRED_STEP_H_
