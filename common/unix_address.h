// Addresses of Unix sockets: "unix:/run/statcollect.sock", in the places where HOST:PORT may stand,
// too.
#ifndef STATCOLLECT_COMMON_UNIX_ADDRESS_H_
#define STATCOLLECT_COMMON_UNIX_ADDRESS_H_

#include <cstddef>
#include <string>
#include <string_view>

#include "common/status.h"

namespace statcollect {

inline constexpr std::string_view kUnixScheme = "unix:";
inline constexpr std::size_t kSocketPathBytesMax =
    107;  // what the system has room for, less the final zero

inline bool IsUnixAddress(std::string_view address) { return address.starts_with(kUnixScheme); }

// The path in an address for which IsUnixAddress holds. kInvalidArgument, with the name of the flag
// or option: not absolute, too long, or with control characters.
Result<std::string> SocketPath(std::string_view what, std::string_view address);

// gRPC's name for the target: what an URI must not have is encoded. Precondition: SocketPath has
// accepted the address.
std::string UnixTarget(std::string_view address);

}  // namespace statcollect

#endif  // STATCOLLECT_COMMON_UNIX_ADDRESS_H_
