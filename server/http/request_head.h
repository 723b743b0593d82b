// A request's head, as services and the gate see it.
#ifndef STATCOLLECT_SERVER_HTTP_REQUEST_HEAD_H_
#define STATCOLLECT_SERVER_HTTP_REQUEST_HEAD_H_

#include <boost/beast/http/fields.hpp>
#include <boost/beast/http/message.hpp>

#include "server/http/exchange.h"

namespace statcollect {

// All but the body, the address of the caller and whether the connection is encrypted.
HttpRequest HeadOf(const boost::beast::http::request_header<>& request);

}  // namespace statcollect

#endif  // STATCOLLECT_SERVER_HTTP_REQUEST_HEAD_H_
