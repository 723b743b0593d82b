// Histograms of binary exponents (docs/exponents.md), and what a narrower format would lose.
#ifndef STATCOLLECT_SERVER_QUERY_CAPTURES_EXPONENTS_H_
#define STATCOLLECT_SERVER_QUERY_CAPTURES_EXPONENTS_H_

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "common/records.h"
#include "common/status.h"
#include "server/store/record_reader.h"

namespace statcollect::query {

// The formats of which a loss is known.
inline constexpr std::array<DType, 4> kNarrowFormats = {DType::kF16, DType::kBf16, DType::kF8E4M3,
                                                        DType::kF8E5M2};

// Effect of rounding to a format, judged by the exponents alone: components in the binade of a tie,
// or in the format's highest one, count as kept.
struct FormatLoss {
  std::uint64_t to_zero = 0, subnormal = 0, overflow = 0;
  std::uint64_t lost() const { return to_zero + overflow; }
};

// Precondition: `format` is one of kNarrowFormats.
FormatLoss LossIn(DType format, const ExponentRecord& record);

struct ExponentsSelection {
  std::string run;
  std::string activation;            // empty: all
  std::vector<Kind> kinds;           // empty: all
  std::vector<std::uint32_t> ranks;  // empty: all
  std::string steps;                 // as for StepSet::Parse
};

struct ExponentsSeen {
  std::string run;
  std::uint32_t rank = 0;
  std::uint32_t attempt = 0;  // launch of the run, from 1
  TensorDef def;
  Layout layout;
  ExponentRecord record;
  std::uint64_t components = 0;  // sum of the counts
  double ShareLostIn(DType format) const;
};

// Calls `take` for each histogram as it is read, in the order of ForEachRecord; its error ends the
// call. A step's histograms come from the newest launch that has the step. kNotFound: no such run.
Status VisitExponents(RecordReader& store, const ExponentsSelection& selection,
                      const std::function<Status(ExponentsSeen)>& take);

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_CAPTURES_EXPONENTS_H_
