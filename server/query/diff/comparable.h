// Whether the comparison of two runs is valid: the list that heads a diff.
#ifndef STATCOLLECT_SERVER_QUERY_DIFF_COMPARABLE_H_
#define STATCOLLECT_SERVER_QUERY_DIFF_COMPARABLE_H_

#include <cstddef>
#include <cstdint>

#include "server/query/compare/tally.h"
#include "server/query/reports.h"
#include "server/query/settings/recorded_config.h"

namespace statcollect::query {

// `both`: tensors, and `losses`: losses that both runs have. The report's lists of the others must
// be complete.
PremiseCheck CheckTensors(const DiffReport& report, std::size_t both, std::size_t losses);
// Weights as loaded, or batches: `pairs` of the first step that is compared.
PremiseCheck CheckGiven(Premise premise, const GivenPairs& pairs, std::uint64_t step);
// `other`: tensors that have another dtype in B, of `both`.
PremiseCheck CheckDTypes(const Tally& tally, std::size_t other, std::size_t both);
// Completes the list by what the report's differing settings say, and sorts it: settings that
// change numbers, and, unless the list says so already, those of the recording.
void CheckSettings(const RecordedConfigs& configs, DiffReport& report);

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_DIFF_COMPARABLE_H_
