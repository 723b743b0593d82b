#include "common/parse.h"

namespace statcollect {

std::optional<HostPort> ParseHostPort(std::string_view text) {
  const std::size_t colon = text.rfind(':');
  if (colon == std::string_view::npos) return std::nullopt;
  std::string_view host = text.substr(0, colon);
  const auto port = ParseNumber<std::uint16_t>(text.substr(colon + 1));
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  } else if (host.find(':') != std::string_view::npos) {
    return std::nullopt;
  }
  if (host.empty() || !port) return std::nullopt;
  return HostPort{std::string(host), *port};
}

}  // namespace statcollect
