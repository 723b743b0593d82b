// Leaves secrets out of recorded configuration.
#ifndef STATCOLLECT_COMMON_REDACT_H_
#define STATCOLLECT_COMMON_REDACT_H_

#include <string>
#include <string_view>

namespace statcollect {

inline constexpr std::string_view kRedacted = "(redacted)";

// The value as it may be stored: kRedacted if the name says that it is a secret (password, api_key, auth_token)
// and it is not a number, a switch or a special token such as <pad>; otherwise without passwords in addresses,
// secret parameters of URLs, access tokens of known services, private keys and long random strings. Hashes in
// hexadecimal digits are kept: commits and data sets are recorded by them. Takes microseconds.
std::string RedactSetting(std::string_view name, std::string_view value);

}  // namespace statcollect

#endif  // STATCOLLECT_COMMON_REDACT_H_
