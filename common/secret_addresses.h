// Secrets in URLs: users with their passwords, and addresses that are secrets as a whole.
#ifndef STATCOLLECT_COMMON_SECRET_ADDRESSES_H_
#define STATCOLLECT_COMMON_SECRET_ADDRESSES_H_

#include <string>
#include <string_view>

namespace statcollect {

// The text with "(redacted)" in place of users and passwords ("postgres://u:p@host/db"), and of
// what follows the part of a webhook's address that is the same for everybody
// ("https://hooks.slack.com/services/").
std::string HideInAddresses(std::string_view text);

// The text without the paths of its URLs, for settings that hold webhooks of whatever service.
std::string HidePaths(std::string_view text);

}  // namespace statcollect

#endif  // STATCOLLECT_COMMON_SECRET_ADDRESSES_H_
