// Why two runs differ at the root of a diff, as far as the stored records tell. The rules: docs/causes.md.
#ifndef STATCOLLECT_SERVER_QUERY_CAUSE_CAUSE_H_
#define STATCOLLECT_SERVER_QUERY_CAUSE_CAUSE_H_

#include <cstddef>
#include <optional>
#include <stop_token>

#include "common/status.h"
#include "server/query/compare/alignment.h"
#include "server/query/compare/merge_ranks.h"
#include "server/query/reports.h"
#include "server/query/run_view.h"

namespace statcollect::query {

// Borrowed.
struct CauseQuestion {
  RunView& a;
  RunView& b;
  const Divergence& root;     // its step must be one of `steps`
  const StepAttempts& steps;  // that the diff compared
  Aligner& aligner;           // of the diff
  std::size_t place = 0;      // of the root's ranks in the aligner
  RankPair ranks;             // the root's
};

// The likeliest cause of the root, or nothing if no rule holds. Of equal confidence, the more specific rule
// wins. Cost: reads the root's step and the one before it of the root's rank from both runs, the scalars of
// up to kScalarStepsMax steps, and the rank's events; for a root in a batch its fingerprints in up to
// kBatchStepsMax steps around; for a root in a weight's gradient that tensor on up to kOtherRanksMax other
// ranks. Fails as reads of the store do, and with kCancelled.
Result<std::optional<Cause>> FindCause(const CauseQuestion& question, const std::stop_token& stop);

inline constexpr std::uint64_t kScalarStepsMax = 1024;
inline constexpr std::uint64_t kBatchStepsMax = 4096;
inline constexpr std::size_t kOtherRanksMax = 8;

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_CAUSE_CAUSE_H_
