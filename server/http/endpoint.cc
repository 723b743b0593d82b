#include "server/http/endpoint.h"

#include <charconv>

#include <boost/asio/ip/address.hpp>

#include "common/names.h"

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
  const auto fail = [&] {
    return Status(Code::kInvalidArgument, std::string(what) + " '" + Printable(text) +
                                              "': expected HOST:PORT with a port from 0 to 65535, such as "
                                              "127.0.0.1:7433 or [::1]:7433");
  };
  const std::size_t colon = text.rfind(':');
  if (colon == std::string_view::npos || colon == 0) return fail();
  std::string_view host = text.substr(0, colon);
  const std::string_view port_text = text.substr(colon + 1);
  if (host.front() == '[' && host.back() == ']' && host.size() > 2) {
    host = host.substr(1, host.size() - 2);
  } else if (host.find(':') != std::string_view::npos) {
    return fail();
  }
  Endpoint endpoint{.host = std::string(host)};
  const auto [end, error] =
      std::from_chars(port_text.data(), port_text.data() + port_text.size(), endpoint.port);
  if (error != std::errc() || end != port_text.data() + port_text.size()) return fail();
  return endpoint;
}

}  // namespace statcollect
