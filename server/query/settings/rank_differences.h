// Settings that ranks of one run do not share.
#ifndef STATCOLLECT_SERVER_QUERY_SETTINGS_RANK_DIFFERENCES_H_
#define STATCOLLECT_SERVER_QUERY_SETTINGS_RANK_DIFFERENCES_H_

#include <string>
#include <vector>

#include "server/query/run_view.h"

namespace statcollect::query {

// One sentence, at most 20, for each setting that differs between ranks of the newest attempt: "lr
// is 0.1 on ranks 0-6 and 0.2 on rank 7". Leaves out settings that naturally differ between ranks.
std::vector<std::string> DifferencesBetweenRanks(const RunView& view);

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_SETTINGS_RANK_DIFFERENCES_H_
