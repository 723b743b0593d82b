#include "common/unix_address.h"

#include <algorithm>
#include <cctype>

#include "common/names.h"

namespace statcollect {
namespace {

bool IsPlainInUri(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '/' || c == '-' || c == '.' ||
         c == '_' || c == '~' || c == ':';
}

}  // namespace

Result<std::string> SocketPath(std::string_view what, std::string_view address) {
  const std::string_view path = address.substr(kUnixScheme.size());
  const auto invalid = [&](const std::string& found, const std::string& expected) {
    return Status(Code::kInvalidArgument, std::string(what) + ": found '" + Printable(address) +
                                              "'" + found + "; expected " + expected);
  };
  if (!path.starts_with('/') || path.ends_with('/') || Printable(path, path.size()) != path)
    return invalid(
        "", "unix: and the absolute path of a socket, such as unix:/run/statcollect/grpc.sock");
  if (path.size() > kSocketPathBytesMax)
    return invalid(", a path of " + std::to_string(path.size()) + " bytes",
                   "at most " + std::to_string(kSocketPathBytesMax) +
                       ", which is the system's limit for sockets; use a shorter path, such as one "
                       "below /run or /tmp");
  return std::string(path);
}

std::string UnixTarget(std::string_view address) {
  constexpr std::string_view kDigits = "0123456789ABCDEF";
  std::string target(kUnixScheme);
  for (const char c : address.substr(kUnixScheme.size())) {
    const auto byte = static_cast<unsigned char>(c);
    if (IsPlainInUri(c)) {
      target += c;
    } else {
      target.append({'%', kDigits[byte >> 4], kDigits[byte & 15]});
    }
  }
  return target;
}

}  // namespace statcollect
