// The check of tokens before HTTP requests, before their body is read.
#ifndef STATCOLLECT_SERVER_API_HTTP_GATE_H_
#define STATCOLLECT_SERVER_API_HTTP_GATE_H_

#include <string>
#include <string_view>

#include "server/access/access.h"
#include "server/http/exchange.h"

namespace statcollect::api {

// The method in the table of scopes for a path: the gRPC method below /api/v1/, otherwise the path itself.
std::string MethodOfPath(std::string_view path);

// 401 without a valid token, 403 without the scope; 400 for a token in the URL. `access` must outlive it.
HttpGate MakeHttpGate(access::AccessControl& access);

}  // namespace statcollect::api

#endif  // STATCOLLECT_SERVER_API_HTTP_GATE_H_
