// What a query that answers with a message is given: a leaf, such as ListLosses (answers/losses.h).
#ifndef STATCOLLECT_SERVER_QUERY_CONTEXT_H_
#define STATCOLLECT_SERVER_QUERY_CONTEXT_H_

#include <cstdint>
#include <functional>
#include <stop_token>

#include "common/status.h"
#include "server/store/document_store.h"

namespace statcollect::query {

// The connection of a rank. Must be thread-safe; empty: never connected.
struct RankLinks {
  std::function<bool(AttemptId attempt, std::uint32_t rank)> is_open;
  // For a rank without goodbye that is not connected: whether it may reconnect soon.
  std::function<bool(AttemptId attempt, std::uint32_t rank)> may_come_back;
};

// All are borrowed for the time of one query.
struct Context {
  DocumentStore& store;  // its reads end when the query is cancelled or has read too much
  const RankLinks& links;
  const std::stop_token& stop;
};

// Fills an empty `out`, which means nothing after an error. Request: has been checked by FromWire
// of the query's header.
template <typename Request, typename Response>
using Leaf = Status(const Context& context, const Request& request, Response& out);

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_CONTEXT_H_
