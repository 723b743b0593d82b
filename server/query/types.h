// Callbacks passed to queries.
#ifndef STATCOLLECT_SERVER_QUERY_TYPES_H_
#define STATCOLLECT_SERVER_QUERY_TYPES_H_

#include <cstdint>
#include <functional>

#include "server/query/reports.h"
#include "server/store/run_reader.h"

namespace statcollect::query {

// Whether a stream of the rank is open. Must be thread-safe; empty: never.
using IsStreamOpen = std::function<bool(AttemptId attempt, std::uint32_t rank)>;

// Called from the thread that runs the query, at most once per step and rank; must not block for
// long.
using OnProgress = std::function<void(const Progress&)>;

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_TYPES_H_
