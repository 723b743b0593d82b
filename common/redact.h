// Leaves secrets out of everything that is stored: configuration, command line, environment, events
// and exceptions.
#ifndef STATCOLLECT_COMMON_REDACT_H_
#define STATCOLLECT_COMMON_REDACT_H_

#include <cstddef>
#include <map>
#include <string>
#include <string_view>

namespace statcollect {

inline constexpr std::string_view kRedacted = "(redacted)";

// The text without what its neighbourhood or its form shows to be a secret.
// Secrets are values after their names
// ("--db-pass x", "password=x", "'api_key': 'x'", "Authorization: Basic x"), passwords in
// addresses, signatures of URLs, webhooks, access tokens of known services, private keys and long
// random strings. Hashes in hexadecimal digits are kept: commits and data sets are recorded by
// them. Its own result does not change again. Takes microseconds for a line.
std::string RedactText(std::string_view text);

// The value of a setting as it may be stored: kRedacted if the name says that it is a secret
// (secret_names.h), otherwise RedactText.
std::string RedactSetting(std::string_view name, std::string_view value);

// Settings that belong together as they are stored: without secrets, printable, at most `bytes_max`
// each. They are cut last, so that no part of a secret is left. A value also is a secret if another
// setting gives its name: "args.3" after "args.2" = "--password", "env.0.value" beside "env.0.name"
// = "DB_PASSWORD".
std::map<std::string, std::string> StoredSettings(
    const std::map<std::string, std::string>& settings, std::size_t bytes_max);
// The same for a text.
std::string StoredText(std::string_view text, std::size_t bytes_max);

}  // namespace statcollect

#endif  // STATCOLLECT_COMMON_REDACT_H_
