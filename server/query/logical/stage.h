// Whether two ranks are of one stage of a pipeline, by the names of their weights.
#ifndef STATCOLLECT_SERVER_QUERY_LOGICAL_STAGE_H_
#define STATCOLLECT_SERVER_QUERY_LOGICAL_STAGE_H_

#include <set>
#include <string>

namespace statcollect::query {

using WeightNames = std::set<std::string>;

// Stages have different layers. Ranks with different experts have the same layers but for what is
// deep inside of them: each module weighs as much as its siblings, however many weights it has, and
// ranks of one stage have at least half in common. Cost: n log n of the names.
bool AreOfOneStage(const WeightNames& a, const WeightNames& b);

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_LOGICAL_STAGE_H_
