// Compares one rank's steps of two runs: the part of a diff that runs on several threads.
#ifndef STATCOLLECT_SERVER_QUERY_COMPARE_RANK_STEP_DIFF_H_
#define STATCOLLECT_SERVER_QUERY_COMPARE_RANK_STEP_DIFF_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <vector>

#include "common/status.h"
#include "server/query/compare/alignment.h"
#include "server/query/compare/distance.h"
#include "server/query/compare/heat_cell.h"
#include "server/query/compare/merge_ranks.h"
#include "server/query/compare/noise.h"
#include "server/query/compare/origin.h"
#include "server/query/compare/step_order.h"
#include "server/query/compare/steps_to_judge.h"
#include "server/query/compare/tally.h"
#include "server/query/reports.h"
#include "server/query/run_view.h"

namespace statcollect::query {

// A row and its position in the report.
struct PlacedRow {
  ReportOrder place;
  Divergence row;
};

// Copies the result of the comparison, except for the two sides.
void SetComparison(Divergence& row, const Comparison& comparison);

// An activation that only one side has.
struct MissingRecord {
  PlacedRow placed;
  bool in_a = false;     // the side that lacks it
  bool defined = false;  // that side has recorded its counterpart in some step
  // An additional output of a module, or its gradient, where both sides have another output of the
  // same call: attention's weights, for example, which only some kernels return. If it matters,
  // what is computed from it shows that.
  bool extra = false;
  std::string label;
  std::uint32_t id = 0;  // of the side that has it
};

// The point where B's order of execution departs from A's.
struct OutOfPlace {
  PlacedRow placed;
  Agreement agreement = Agreement::kIdentical;  // judged by the values alone
  // a different shape or dtype remains the reason; the order is not reported there
  bool keeps_reason = false;
  TensorKey behind;  // in A: what follows it there, and ran before it in B
};

struct RankStepFindings {
  std::uint64_t step = 0;
  RankPair ranks;
  std::size_t attempt_a = 0, attempt_b = 0;
  const Alignment* alignment = nullptr;  // null: there was nothing to compare
  bool only_in_a = false,
       only_in_b = false;  // the other run has no statistics of the rank in this step
  Tally tally;
  std::vector<PlacedRow> rows;             // diverged
  std::optional<PlacedRow> first_bitwise;  // the first pair that is not bit-identical
  std::vector<MissingRecord> missing;
  std::optional<OutOfPlace> out_of_place;
  std::optional<ForwardTrace> trace;
  // This run made an update without a training pass in this step; the other run made a pass.
  bool only_update_in_a = false, only_update_in_b = false;
  std::vector<ScalarRecord> losses_a, losses_b;
  StepRise rise;
  std::vector<HeatCell> cells;   // only if the context wants them
  std::vector<Spot> loss_spots;  // one per entry of losses_a; empty: the step has one segment
};

// The last step whose details can still matter to the report. Limits only decrease; the thread that
// finds enough in a step lowers them. Thread-safe.
class DetailLimits {
 public:
  explicit DetailLimits(std::uint64_t rows_max) : rows_max_(rows_max) {}
  bool WantsRows(std::uint64_t step) const { return step <= rows_.load(std::memory_order_relaxed); }
  bool WantsBitwise(std::uint64_t step) const {
    return step <= bitwise_.load(std::memory_order_relaxed);
  }
  bool WantsOrder(std::uint64_t step) const {
    return step <= order_.load(std::memory_order_relaxed);
  }
  void EnoughRows(std::uint64_t step) { Lower(rows_, step); }
  void EnoughBitwise(std::uint64_t step) { Lower(bitwise_, step); }
  void EnoughOrder(std::uint64_t step) { Lower(order_, step); }
  std::uint64_t rows_max() const { return rows_max_; }

 private:
  static void Lower(std::atomic<std::uint64_t>& limit, std::uint64_t step) {
    std::uint64_t now = limit.load();
    while (step < now && !limit.compare_exchange_weak(now, step)) {
    }
  }
  const std::uint64_t rows_max_;
  std::atomic<std::uint64_t> rows_{~std::uint64_t{0}}, bitwise_{~std::uint64_t{0}},
      order_{~std::uint64_t{0}};
};

// Shared by all comparisons of a diff. Borrowed; thread-safe.
struct DiffContext {
  RunView& a;
  RunView& b;
  std::optional<double> tolerance;
  bool exact = false;
  bool losses = true;  // also read the losses
  Aligner& aligner;
  DetailLimits& limits;
  NoiseFloor* noise = nullptr;  // null: none
  bool noise_allows =
      true;  // a multiple of it; false: the verdict measures rounding from the repeats
  // Whole models that are cut differently: sizes in their modules differ for that reason.
  bool logical = false;
  std::vector<double> loss_factors;  // DiffRequest::loss_factors
  NearTies near_ties;                // DiffRequest::near_ties
  bool cells = false;  // also of the heat map; then hashes of equal blocks are read, too
};

// Steps of one rank that both runs have, ascending, each run's from one attempt.
struct RankSteps {
  std::size_t place = 0;  // position in the plan, which selects the alignment
  RankPair ranks;
  std::size_t attempt_a = 0, attempt_b = 0;
  std::vector<std::uint64_t> steps;
};

// One entry per step, in order; fewer if a stop was requested. Memory: one step of the rank of both
// runs.
Result<std::vector<RankStepFindings>> CompareRankSteps(const DiffContext& context,
                                                       const RankSteps& steps,
                                                       const std::stop_token& stop);

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_COMPARE_RANK_STEP_DIFF_H_
