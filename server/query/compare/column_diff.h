// Compares blocks of two runs as columns, where both have the same tensors in the same order:
// nearly all pairs of a diff. They are those of PairedStep, found once for all steps, for speed.
#ifndef STATCOLLECT_SERVER_QUERY_COMPARE_COLUMN_DIFF_H_
#define STATCOLLECT_SERVER_QUERY_COMPARE_COLUMN_DIFF_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <vector>

#include "server/query/compare/alignment.h"
#include "server/query/compare/column_distances.h"
#include "server/query/compare/rank_step_diff.h"
#include "server/query/compare/step_distances.h"
#include "server/query/compare/steps_to_judge.h"
#include "server/store/number_columns.h"

namespace statcollect::query {

// Works on one rank, step by step, and keeps what definitions say about a block's pairs for later
// steps. Borrows everything. Not thread-safe.
class ColumnDiff {
 public:
  ColumnDiff(const DiffContext& context, DistanceFollower& follower, StepDistances& distances)
      : context_(context), follower_(follower), distances_(distances) {}

  // Compares a pair as any other, and counts it.
  using Compare =
      std::function<void(const Observation& a, const Observation& b, std::uint32_t id_a, Stage)>;

  // Counts all pairs of two blocks with the same lowest activation in `at`; pairs that need more
  // than the usual arithmetic are left to `compare`, in the block's order. False, with nothing
  // counted: the blocks do not pair off record by record, some records were not requested, or they
  // ran in another order. The follower needs room for all ids of `alignment`.
  bool Count(const Alignment& alignment, const NumberColumns& a, const NumberColumns& b,
             RankStepFindings& at, const Compare& compare);

 private:
  // What the definitions say about the pairs of two blocks.
  struct Pairs {
    std::vector<std::uint64_t> numbers;  // whose they are: activations and layouts of both blocks
    bool pair_off = false;   // each has its counterpart at the same place of the other block
    bool in_passes = false;  // some are of a forward pass, whose order counts
    bool marked = false;     // as compared
    bool hashed = false;     // some usual ones are
    std::uint64_t weights = 0, batches = 0;  // usual ones that are
    std::vector<std::uint64_t> usual;        // mask: see IsUsualPair
    std::vector<double> limit,
        tolerance;                   // the largest distance within tolerance: -1 if there is none
    std::vector<double> components;  // real parts of an element
    std::vector<Stage> stages;
    std::vector<std::uint8_t> given, diverged;  // IsGiven; marked as diverged
  };

  Pairs& PairsOf(const Alignment& alignment, const NumberColumns& a, const NumberColumns& b);
  void LookUp(const Alignment& alignment, const NumberColumns& a, const NumberColumns& b,
              Pairs& pairs) const;
  void AddPair(const Alignment& alignment, std::uint32_t id_a, const Layout& a, const Layout& b,
               Pairs& pairs) const;
  void CountPairs(const Alignment& alignment, const NumberColumns& a, const NumberColumns& b,
                  Pairs& pairs, RankStepFindings& at, const Compare& compare);
  static void MarkCompared(const Alignment& alignment, const NumberColumns& a, Pairs& pairs);
  // Those of different_, which it clears.
  void CountDifferent(const Alignment& alignment, const NumberColumns& a, Pairs& pairs,
                      RankStepFindings& at);
  static void AddCell(const NumberColumns& a, std::size_t i, std::uint8_t level,
                      RankStepFindings& at);

  const DiffContext& context_;
  DistanceFollower& follower_;
  StepDistances& distances_;
  const Alignment* alignment_ = nullptr;  // of the pairs
  std::map<std::uint64_t, Pairs> pairs_;  // by A's first activation
  PairColumns measured_;
  std::vector<std::size_t> different_;  // usual pairs that are not identical and not yet counted
};

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_COMPARE_COLUMN_DIFF_H_
