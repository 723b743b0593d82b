// Parts of a diff's report beside its rows. What each says is in a file of its own, except those of
// comparable.cc: whether the comparison is valid, the list that heads a diff.
#ifndef STATCOLLECT_SERVER_QUERY_DIFF_REPORT_PARTS_H_
#define STATCOLLECT_SERVER_QUERY_DIFF_REPORT_PARTS_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "server/query/compare/alignment.h"
#include "server/query/compare/diff_plan.h"
#include "server/query/compare/name_map.h"
#include "server/query/compare/tally.h"
#include "server/query/reports.h"
#include "server/query/settings/recorded_config.h"

namespace statcollect::query {

// comparable.cc. `both`: tensors, and `losses`: losses that both runs have. The report's lists of
// the others must be complete.
PremiseCheck CheckTensors(const DiffReport& report, std::size_t both, std::size_t losses);
// Weights as loaded, or batches: `pairs` of the first step that is compared.
PremiseCheck CheckGiven(Premise premise, const GivenPairs& pairs, std::uint64_t step);
// `other`: tensors that have another dtype in B, of `both`.
PremiseCheck CheckDTypes(const Tally& tally, std::size_t other, std::size_t both);
// Completes the list by what the report's differing settings say, and sorts it: settings that
// change numbers, and, unless the list says so already, those of the recording.
void CheckSettings(const RecordedConfigs& configs, DiffReport& report);

// growth.cc: how the distance between the runs grows. `points`: one per step, ascending, from the
// first step that is not identical. The factor is the least-squares slope of the distances'
// logarithms over the steps.
Growth SummariseGrowth(const std::vector<GrowthPoint>& points);

// bracket.cc: between which steps the divergence began, if an overhead budget left steps out of the
// full statistics. Adds one sentence to the notes and the root's reasons, unless the step of the
// divergence is certain.
void AddBracket(const DiffPlan& plan, DiffReport& report);

// map_notes.cc: rules of the map of names without effect, names that were left out, and tensors of
// which only statistics could be compared because their elements are in another order. Call it once
// all alignments have been made.
void AddMapNotes(const NameMap& names, const Aligner& aligner, DiffReport& report,
                 const std::string& run_a, const std::string& run_b);

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_DIFF_REPORT_PARTS_H_
