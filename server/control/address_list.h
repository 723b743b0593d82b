// A list of networks, "192.0.2.0/24,10.1.2.3,fd00::/8".
#ifndef STATCOLLECT_SERVER_CONTROL_ADDRESS_LIST_H_
#define STATCOLLECT_SERVER_CONTROL_ADDRESS_LIST_H_

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "common/status.h"

struct sockaddr;

namespace statcollect {

class AddressList {
 public:
  // An empty text is an empty list. kInvalidArgument names the flag and what it accepts.
  static Result<AddressList> Parse(const std::string& flag, const std::string& text);

  bool empty() const { return networks_.empty(); }
  // Whether the address is in one of the networks. IPv4 in IPv6 (::ffff:192.0.2.1) counts as IPv4.
  bool Contains(const sockaddr& address) const;

 private:
  using Bytes = std::array<std::uint8_t, 16>;  // IPv4 as in IPv6
  struct Network {
    Bytes address{};
    unsigned bits = 128;
  };
  static bool ParseNetwork(const std::string& text, Network* network);

  std::vector<Network> networks_;
};

// "192.0.2.1", for messages.
std::string AddressText(const sockaddr& address);

}  // namespace statcollect

#endif  // STATCOLLECT_SERVER_CONTROL_ADDRESS_LIST_H_
