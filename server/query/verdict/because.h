// The reasons for a jump, in words.
#ifndef STATCOLLECT_SERVER_QUERY_VERDICT_BECAUSE_H_
#define STATCOLLECT_SERVER_QUERY_VERDICT_BECAUSE_H_

#include <span>
#include <string>
#include <vector>

#include "server/query/reports.h"
#include "server/query/verdict/jumps.h"

namespace statcollect::query {

// `quiet`: everything before the jump agrees bit for bit.
Confidence ConfidenceIn(const Jump& jump, bool quiet);

// One sentence each, without a full stop; the strongest first.
std::vector<std::string> Reasons(std::span<const Explained> step, const Jump& jump, bool quiet);

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_VERDICT_BECAUSE_H_
