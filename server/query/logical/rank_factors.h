// Whether each rank of a run has scaled its part of a tensor by itself.
#ifndef STATCOLLECT_SERVER_QUERY_LOGICAL_RANK_FACTORS_H_
#define STATCOLLECT_SERVER_QUERY_LOGICAL_RANK_FACTORS_H_

#include <cstdint>
#include <map>
#include <span>

#include "server/query/logical/merge_parts.h"

namespace statcollect::query {

// By rank of B, how many times A's values its part has, if that is all that differs and the factors
// are not the same; otherwise empty. Parts of one tensor are solved for together, because A's
// sketch is the sum over them; replicas one by one. Needs sketches of known places, of at least
// twice as many sums as parts. Pure.
std::map<std::uint32_t, double> RankFactors(std::span<const Part> a, std::span<const Part> b);

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_LOGICAL_RANK_FACTORS_H_
