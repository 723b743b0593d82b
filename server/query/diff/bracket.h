// Between which steps a divergence began, if an overhead budget left steps out of the full
// statistics.
#ifndef STATCOLLECT_SERVER_QUERY_DIFF_BRACKET_H_
#define STATCOLLECT_SERVER_QUERY_DIFF_BRACKET_H_

#include "server/query/compare/diff_plan.h"
#include "server/query/reports.h"

namespace statcollect::query {

// Adds one sentence to the notes and the root's reasons, unless the step of the divergence is
// certain.
void AddBracket(const DiffPlan& plan, DiffReport& report);

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_DIFF_BRACKET_H_
