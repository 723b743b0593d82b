// The OpenAPI 3.1 description of the HTTP endpoints, generated from the descriptors: names, types
// and comments.
#ifndef STATCOLLECT_SERVER_API_HTTP_OPENAPI_H_
#define STATCOLLECT_SERVER_API_HTTP_OPENAPI_H_

#include <map>
#include <string>

#include <nlohmann/json.hpp>

#include "server/api/http/routes.h"

namespace statcollect::api {

nlohmann::ordered_json MakeOpenApi(const std::map<std::string, HttpRoute>& routes);

}  // namespace statcollect::api

#endif  // STATCOLLECT_SERVER_API_HTTP_OPENAPI_H_
