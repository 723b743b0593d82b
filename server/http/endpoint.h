// HOST:PORT addresses as given on a command line.
#ifndef STATCOLLECT_SERVER_HTTP_ENDPOINT_H_
#define STATCOLLECT_SERVER_HTTP_ENDPOINT_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "common/status.h"

namespace statcollect {

struct Endpoint {
  std::string host;        // without brackets
  std::uint16_t port = 0;  // 0: the system picks a free port

  std::string ToString() const;  // "127.0.0.1:7433", "[::1]:7433"
  // Whether only this machine can reach it: 127.0.0.0/8, ::1, localhost.
  bool IsLoopback() const;
};

// "HOST:PORT", "[V6]:PORT". `what` names the flag in the message. kInvalidArgument otherwise.
Result<Endpoint> ParseEndpoint(std::string_view what, std::string_view text);

}  // namespace statcollect

#endif  // STATCOLLECT_SERVER_HTTP_ENDPOINT_H_
