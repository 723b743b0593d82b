// The verdict of a diff: whether rounding explains the differences; if not, where they begin and
// why.
#ifndef STATCOLLECT_SERVER_QUERY_VERDICT_VERDICT_H_
#define STATCOLLECT_SERVER_QUERY_VERDICT_VERDICT_H_

#include <stop_token>

#include "common/status.h"
#include "server/query/reports.h"
#include "server/query/verdict/root_search.h"

namespace statcollect::query {

// Whether rounding may explain what a request finds: not if it sets its own limits, or leaves out
// what tensors are computed from.
inline bool MayExplain(const DiffRequest& request) {
  return !request.tolerance && !request.exact && !request.merge_ranks && request.kinds.empty();
}

// Sets the report's root, its cause and `explained_by_rounding`, and revokes a divergence that
// rounding explains. `tally`: of the whole scan. Where rounding cannot be told from bugs
// (statistics only, some kinds only, merged ranks), a note says so, and the first difference above
// its tolerance is the root. With a tolerance of the user or `exact`, rounding never overrides the
// verdict. Precondition: something was compared. Cost: FindRoot and FindCauses.
Status JudgeReport(const RootQuestion& question, const DiffRequest& request, const Tally& tally,
                   DiffReport& report, const std::stop_token& stop);

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_VERDICT_VERDICT_H_
