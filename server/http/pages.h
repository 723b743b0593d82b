// What a connection does without its state: pages that a handler makes, and errors.
#ifndef STATCOLLECT_SERVER_HTTP_PAGES_H_
#define STATCOLLECT_SERVER_HTTP_PAGES_H_

#include <map>
#include <string>

#include <boost/beast/http.hpp>

#include "server/http/server.h"

namespace statcollect {

using HttpMessage = boost::beast::http::request<boost::beast::http::string_body>;

HttpResponse ErrorResponse(int status, const std::string& message);

// Status 405 for other methods than GET and HEAD, 404 with what there is for an unknown path, 500
// if the handler throws.
HttpResponse AnswerPage(const std::map<std::string, HttpHandler>& handlers,
                        const HttpServices& services, const HttpMessage& request,
                        const std::string& target);

}  // namespace statcollect

#endif  // STATCOLLECT_SERVER_HTTP_PAGES_H_
