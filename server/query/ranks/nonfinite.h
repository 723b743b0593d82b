// Finds batches, activations and their gradients that are NaN or infinite on only some ranks.
#ifndef STATCOLLECT_SERVER_QUERY_RANKS_NONFINITE_H_
#define STATCOLLECT_SERVER_QUERY_RANKS_NONFINITE_H_

#include "server/query/ranks/finding_list.h"
#include "server/query/ranks/group_step.h"

namespace statcollect::query {

void FindNonfinite(const GroupStep& at, const KeyTable& keys, FindingList& findings);

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_RANKS_NONFINITE_H_
