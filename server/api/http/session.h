// Browsers that are logged in with a cookie instead of a token.
//
// POST /session/login   {"link": "..."}: uses up a link of Login/CreateLink. The answer sets an
// HttpOnly cookie, and its
//                       body has the session's second secret, "page", which the page sends with
//                       each request.
// POST /session/logout  ends the session.
#ifndef STATCOLLECT_SERVER_API_HTTP_SESSION_H_
#define STATCOLLECT_SERVER_API_HTTP_SESSION_H_

#include <string>
#include <string_view>

#include "server/access/access.h"
#include "server/http/exchange.h"

namespace statcollect::api {

inline constexpr std::string_view kSessionPrefix = "/session/";

// What the request says of its session; parts that cannot be secrets are left out. Points into
// `head`.
access::SessionCredential SessionOf(const HttpRequest& head);

// Thread-safe; `access` must outlive it.
HttpService MakeSessionService(access::AccessControl& access);

}  // namespace statcollect::api

#endif  // STATCOLLECT_SERVER_API_HTTP_SESSION_H_
