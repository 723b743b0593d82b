// Asks a query whose answer is a message, as the services do.
#ifndef STATCOLLECT_TESTS_SERVER_QUERY_ASK_H_
#define STATCOLLECT_TESTS_SERVER_QUERY_ASK_H_

#include <stop_token>
#include <type_traits>

#include "server/query/query.h"
#include "statcollect/v1/query.pb.h"

namespace statcollect::testing {

template <typename Request, typename Response>
Result<Response> Ask(const query::QueryEngine& engine, query::Leaf<Request, Response>* query,
                     const std::type_identity_t<Request>& request,
                     const std::stop_token& stop = {}) {
  Response response;
  STATCOLLECT_RETURN_IF_ERROR(engine.Ask(query, request, response, stop));
  return response;
}
template <typename Request, typename Response>
Result<Response> Ask(DocumentStore& store, query::Leaf<Request, Response>* query,
                     const std::type_identity_t<Request>& request,
                     const std::stop_token& stop = {}) {
  return Ask(query::QueryEngine(store), query, request, stop);
}

}  // namespace statcollect::testing

#endif  // STATCOLLECT_TESTS_SERVER_QUERY_ASK_H_
