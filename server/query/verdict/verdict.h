// The verdict of a diff: whether rounding explains what differs, and if not, where it begins and why.
#ifndef STATCOLLECT_SERVER_QUERY_VERDICT_VERDICT_H_
#define STATCOLLECT_SERVER_QUERY_VERDICT_VERDICT_H_

#include <stop_token>

#include "common/status.h"
#include "server/query/reports.h"
#include "server/query/verdict/root_search.h"

namespace statcollect::query {

// Sets the report's root, its cause and `explained_by_rounding`, and takes back a divergence that rounding
// explains. `tally`: of the whole scan. Leaves reports alone in which it cannot be known (statistics only,
// some kinds only, merged ranks) and says so in a note. With a tolerance of the user's, or `exact`, the
// verdict stays what these rules made it. Precondition: something was compared. Cost: FindRoot and FindCause.
Status JudgeReport(const RootQuestion& question, const DiffRequest& request, const Tally& tally,
                   DiffReport& report, const std::stop_token& stop);

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_VERDICT_VERDICT_H_
