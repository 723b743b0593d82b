// Numbers and addresses out of text that people write.
// A number is read in full or not at all: no blanks, no '+', no value that the type cannot hold; a
// '-' only where the type has a sign.
#ifndef STATCOLLECT_COMMON_PARSE_H_
#define STATCOLLECT_COMMON_PARSE_H_

#include <charconv>
#include <concepts>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>

#include "common/names.h"
#include "common/status.h"

namespace statcollect {

template <typename T>
struct LeadingNumber {
  T number;
  std::string_view rest;  // of the text
};

// The number at the beginning of the text; empty if there is none.
template <std::integral T>
std::optional<LeadingNumber<T>> ParseLeadingNumber(std::string_view text, int base = 10) {
  T number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number, base);
  if (error != std::errc()) return std::nullopt;
  return LeadingNumber<T>{number, text.substr(static_cast<std::size_t>(end - text.data()))};
}

template <std::integral T>
std::optional<T> ParseNumber(std::string_view text, int base = 10) {
  const auto leading = ParseLeadingNumber<T>(text, base);
  return leading && leading->rest.empty() ? std::optional(leading->number) : std::nullopt;
}

// "1.5", "-2e-3", "inf", "nan".
template <std::floating_point T>
std::optional<T> ParseNumber(std::string_view text) {
  T number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

// kInvalidArgument: "expected a whole number from 0 to 9, found 'x'".
template <std::integral T>
Result<T> ParseNumberIn(std::string_view text, T lowest, T highest) {
  const auto number = ParseNumber<T>(text);
  if (number && *number >= lowest && *number <= highest) return *number;
  return Status(Code::kInvalidArgument, "expected a whole number from " + std::to_string(lowest) +
                                            " to " + std::to_string(highest) + ", found '" +
                                            Printable(text) + "'");
}

struct HostPort {
  std::string host;  // not empty; without the brackets of an IPv6 address
  std::uint16_t port = 0;
};

// "HOST:PORT" or "[V6]:PORT"; a host without brackets has no ':'. Empty otherwise. The caller
// checks the characters of the host.
std::optional<HostPort> ParseHostPort(std::string_view text);

}  // namespace statcollect

#endif  // STATCOLLECT_COMMON_PARSE_H_
