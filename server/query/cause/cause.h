// Finds out why two runs differ at the root of a diff, from the stored records. The rules:
// docs/causes.md.
#ifndef STATCOLLECT_SERVER_QUERY_CAUSE_CAUSE_H_
#define STATCOLLECT_SERVER_QUERY_CAUSE_CAUSE_H_

#include <cstddef>
#include <stop_token>
#include <vector>

#include "common/status.h"
#include "server/query/compare/alignment.h"
#include "server/query/compare/merge_ranks.h"
#include "server/query/pairs/twins.h"
#include "server/query/reports.h"
#include "server/query/run_view.h"

namespace statcollect::query {

// Borrowed.
struct CauseQuestion {
  RunView& a;
  RunView& b;
  const Divergence& root;        // its step must be one of `steps`
  const StepAttempts& steps;     // compared by the diff
  Aligner& aligner;              // of the diff
  std::size_t place = 0;         // of the root's ranks in the aligner
  RankPair ranks;                // the root's
  const Twins* twins = nullptr;  // of A; null: none
};

// Why the runs differ at the root, as far as the records show: all causes that are at least likely,
// most certain first, then the most specific rule; otherwise the best one. Empty if no rule
// applies. Cost: from both runs, on the root's rank, reads the root's step (of one twin, too) and
// the one before it, the scalars of up to kScalarStepsMax steps, and the events. If the root is in
// a batch, also fingerprints of the batch in up to kBatchStepsMax steps around it; if the root is a
// weight's gradient, also that tensor on up to kOtherRanksMax other ranks, and both steps on up to
// kNormRanksMax. Errors: those of store reads, and kCancelled.
Result<std::vector<Cause>> FindCauses(const CauseQuestion& question, const std::stop_token& stop);

inline constexpr std::size_t kCausesMax = 5;
inline constexpr std::size_t kNormRanksMax = 64;
inline constexpr std::uint64_t kScalarStepsMax = 1024;
inline constexpr std::uint64_t kBatchStepsMax = 4096;
inline constexpr std::size_t kOtherRanksMax = 8;

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_CAUSE_CAUSE_H_
