// The signature of a webhook's messages, by which their receiver knows that the collector sent
// them, and when.
#ifndef STATCOLLECT_SERVER_CONTROL_WEBHOOK_SIGNATURE_H_
#define STATCOLLECT_SERVER_CONTROL_WEBHOOK_SIGNATURE_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "common/status.h"

namespace statcollect {

inline constexpr std::size_t kWebhookSecretBytesMin = 16, kWebhookSecretBytesMax = 4096;

// The file's content without white space at its end. kPermissionDenied: others may read it;
// kInvalidArgument: too short or too long, or there is no such file.
Result<std::string> ReadWebhookSecret(const std::string& path);

// "v1=" and HMAC-SHA256, in hexadecimal digits, of "<unix_seconds>.<body>".
std::string WebhookSignature(std::string_view secret, std::int64_t unix_seconds,
                             std::string_view body);

}  // namespace statcollect

#endif  // STATCOLLECT_SERVER_CONTROL_WEBHOOK_SIGNATURE_H_
