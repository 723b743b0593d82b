#include "server/control/address_list.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <sstream>

#include "common/names.h"
#include "common/parse.h"
#include "common/text.h"

namespace statcollect {
namespace {

constexpr unsigned kMappedBits = 96;  // ::ffff:0:0/96 holds the IPv4 addresses

std::array<std::uint8_t, 16> Mapped(const void* ipv4) {
  std::array<std::uint8_t, 16> bytes{};
  bytes[10] = bytes[11] = 0xff;
  std::memcpy(bytes.data() + 12, ipv4, 4);
  return bytes;
}

std::optional<std::array<std::uint8_t, 16>> BytesOf(const sockaddr& address) {
  std::array<std::uint8_t, 16> bytes{};
  if (address.sa_family == AF_INET) {
    sockaddr_in v4{};
    std::memcpy(&v4, &address, sizeof v4);
    return Mapped(&v4.sin_addr);
  }
  if (address.sa_family != AF_INET6) return std::nullopt;
  sockaddr_in6 v6{};
  std::memcpy(&v6, &address, sizeof v6);
  std::memcpy(bytes.data(), &v6.sin6_addr, bytes.size());
  return bytes;
}

}  // namespace

bool AddressList::ParseNetwork(const std::string& text, Network* network) {
  const std::size_t slash = text.find('/');
  const std::string host = text.substr(0, slash);
  in_addr v4{};
  in6_addr v6{};
  unsigned before = 0;
  if (inet_pton(AF_INET, host.c_str(), &v4) == 1) {
    network->address = Mapped(&v4);
    before = kMappedBits;
  } else if (inet_pton(AF_INET6, host.c_str(), &v6) == 1) {
    std::memcpy(network->address.data(), &v6, network->address.size());
  } else {
    return false;
  }
  if (slash == std::string::npos) return true;
  const auto bits = ParseNumber<unsigned>(text.substr(slash + 1));
  if (!bits || *bits > 128 - before) return false;
  network->bits = before + *bits;
  return true;
}

Result<AddressList> AddressList::Parse(const std::string& flag, const std::string& text) {
  AddressList list;
  std::istringstream parts(text);
  for (std::string part; std::getline(parts, part, ',');) {
    Network network;
    if (!ParseNetwork(std::string(Trimmed(part, " ")), &network)) {
      return Status(Code::kInvalidArgument, flag + ": '" + Printable(part) +
                                                "' is not an address or a network; expected a list "
                                                "such as 192.0.2.0/24,10.1.2.3,fd00::/8");
    }
    list.networks_.push_back(network);
  }
  return list;
}

bool AddressList::Contains(const sockaddr& address) const {
  const auto bytes = BytesOf(address);
  if (!bytes) return false;
  return std::any_of(networks_.begin(), networks_.end(), [&](const Network& network) {
    for (unsigned bit = 0; bit < network.bits; bit += 8) {
      const unsigned left = std::min(8U, network.bits - bit);
      const auto mask = static_cast<std::uint8_t>(0xff << (8 - left));
      if (((*bytes)[bit / 8] & mask) != (network.address[bit / 8] & mask)) return false;
    }
    return true;
  });
}

std::string AddressText(const sockaddr& address) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  const auto bytes = BytesOf(address);
  if (!bytes) return "an address of another kind";
  const bool v4 = address.sa_family == AF_INET;
  const void* from = bytes->data() + (v4 ? 12 : 0);
  return inet_ntop(v4 ? AF_INET : AF_INET6, from, text.data(), text.size()) == nullptr
             ? "?"
             : text.data();
}

}  // namespace statcollect
