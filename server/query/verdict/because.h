// The reasons for a jump, in words.
#ifndef STATCOLLECT_SERVER_QUERY_VERDICT_BECAUSE_H_
#define STATCOLLECT_SERVER_QUERY_VERDICT_BECAUSE_H_

#include <span>
#include <string>
#include <vector>

#include "server/query/reports.h"
#include "server/query/verdict/jumps.h"

namespace statcollect::query {

// Reasons that others share, or that are said otherwise where bits are not known.
inline constexpr char kOfInput[] = "it is an input: nothing that was recorded computes it";
inline constexpr char kAllBitsAgree[] = "everything before it agrees bit for bit";
inline constexpr char kAllStatisticsAgree[] =
    "everything before it is equal in every recorded statistic";

// `quiet`: everything before the jump agrees bit for bit. Certain is only what twins measured or
// what is exact: inputs that nothing computes, recorded settings, equal bits elsewhere, values that
// are no numbers. A distance beyond what the rules expect is likely at most.
Confidence ConfidenceIn(const Explained& one, const Jump& jump, bool quiet);

// One sentence each, without a full stop; the strongest first.
std::vector<std::string> Reasons(std::span<const Explained> step, const Jump& jump, bool quiet);

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_VERDICT_BECAUSE_H_
