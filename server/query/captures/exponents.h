// Histograms of binary exponents (docs/exponents.md), and what a narrower format would lose.
#ifndef STATCOLLECT_SERVER_QUERY_CAPTURES_EXPONENTS_H_
#define STATCOLLECT_SERVER_QUERY_CAPTURES_EXPONENTS_H_

#include <cstdint>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "common/records.h"
#include "common/status.h"
#include "server/store/store.h"

namespace statcollect::query {

struct ExponentsRequest {
  std::string run;
  std::string activation;              // empty: all
  std::vector<Kind> kinds;             // empty: all
  std::vector<std::uint32_t> ranks;    // empty: all
  std::string steps;                   // as for StepSet::Parse
  DType format = DType::kUnspecified;  // kF16, kBf16, kF8E4M3 or kF8E5M2; kUnspecified: all four
  bool summary = false;                // one row per tensor: the step in which the format loses most
  double lost_min = 0.01;              // share from which `since_step` counts
};

// Effect of rounding to a format, judged by the exponents alone: components in the binade of a tie, or in the
// format's highest one, count as kept.
struct FormatLoss {
  DType format = DType::kUnspecified;
  std::uint64_t to_zero = 0, subnormal = 0, overflow = 0;
  std::uint64_t lost() const { return to_zero + overflow; }
};

struct ExponentRow {
  std::string run;
  std::uint32_t rank = 0;
  std::uint32_t attempt = 0;  // launch of the run, from 1
  TensorDef def;
  Layout layout;
  ExponentRecord record;
  std::uint64_t components = 0;             // sum of the counts
  std::vector<FormatLoss> formats;          // one per requested format
  std::uint64_t steps = 1;                  // number of steps that the row summarises
  std::uint64_t last_step = 0;              // the last of these
  std::optional<std::uint64_t> since_step;  // in a summary: the first step with at least lost_min lost
};

// Precondition: `format` is one of the four.
FormatLoss LossIn(DType format, const ExponentRecord& record);

// A step's histograms come from the newest launch that has the step. Sorted by activation, kind, path, rank,
// step; a summary by the share lost, largest first, then as above. Memory: the rows of the answer, and a
// rank's records of some steps. kNotFound: no such run, or the selection has none of the activation (says where there are some, or gives
// the closest names that have); kResourceExhausted: more than kRowsMax rows; kCancelled: `stop`, checked between reads of some
// steps.
Result<std::vector<ExponentRow>> ListExponents(Store& store, const ExponentsRequest& request,
                                               const std::stop_token& stop);

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_CAPTURES_EXPONENTS_H_
