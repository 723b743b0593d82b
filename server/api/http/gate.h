// What is checked before HTTP requests, before their body is read: where they come from, then their
// token.
#ifndef STATCOLLECT_SERVER_API_HTTP_GATE_H_
#define STATCOLLECT_SERVER_API_HTTP_GATE_H_

#include <string>
#include <string_view>

#include "server/access/access.h"
#include "server/http/exchange.h"
#include "server/http/foreign.h"

namespace statcollect::api {

// The method in the table of scopes for a path: the gRPC method below /api/v1/, otherwise the path
// itself.
std::string MethodOfPath(std::string_view path);

// 421 or 403 for what `foreign` refuses (null: nothing); then 401 without a valid token, 403
// without the scope; 400 for a token in the URL. Both must outlive it.
HttpGate MakeHttpGate(access::AccessControl& access, ForeignCheck* foreign = nullptr);

}  // namespace statcollect::api

#endif  // STATCOLLECT_SERVER_API_HTTP_GATE_H_
