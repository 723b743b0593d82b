#include "server/http/endpoint.h"

#include <boost/asio/ip/address.hpp>

#include "common/names.h"
#include "common/parse.h"

namespace statcollect {

std::string Endpoint::ToString() const {
  const bool v6 = host.find(':') != std::string::npos;
  return (v6 ? "[" + host + "]" : host) + ":" + std::to_string(port);
}

bool Endpoint::IsLoopback() const {
  if (host == "localhost") return true;
  boost::system::error_code error;
  const auto address = boost::asio::ip::make_address(host, error);
  return !error && address.is_loopback();
}

Result<Endpoint> ParseEndpoint(std::string_view what, std::string_view text) {
  auto parsed = ParseHostPort(text);
  if (!parsed) {
    return Status(Code::kInvalidArgument, std::string(what) +
                                              ": expected HOST:PORT with a port from 0 to 65535, "
                                              "such as 127.0.0.1:7433 or [::1]:7433, found '" +
                                              Printable(text) + "'");
  }
  return Endpoint{.host = std::move(parsed->host), .port = parsed->port};
}

}  // namespace statcollect
