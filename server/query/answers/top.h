// The extreme activations of one step: the largest norm, the first NaN, the most zeros.
#ifndef STATCOLLECT_SERVER_QUERY_ANSWERS_TOP_H_
#define STATCOLLECT_SERVER_QUERY_ANSWERS_TOP_H_

#include "server/query/answers/leaf.h"
#include "server/query/top.h"

namespace statcollect::query {

inline constexpr std::uint32_t kTopCountMax = 10'000;

struct TopRequest {
  std::string run;
  TopBy by = TopBy::kUnspecified;
  std::optional<std::uint64_t> step;  // absent: the newest with statistics
  std::vector<std::uint32_t> ranks;   // empty: all
  std::vector<Kind> kinds;            // empty: all
  std::uint32_t count = 0;            // rows; 0: kTopDefault
  bool by_rank = false;               // the parts of tensors that are cut over ranks
};

// Adds: a number to order by that there is not, or that only a map has.
Result<TopRequest> FromWire(const v1::GetTopRequest& request);

// Whole tensors where the run has cut them over its ranks, unless ranks are asked for; those of
// which nothing says how they are cut come rank by rank. Memory: one step of one rank, and the
// rows. kInvalidArgument: count; kNotFound: the step (names the nearest); kCancelled.
Status GetTop(const Context& context, const TopRequest& request, v1::GetTopResponse& out);

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_ANSWERS_TOP_H_
