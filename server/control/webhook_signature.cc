#include "server/control/webhook_signature.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <span>
#include <system_error>

#include <openssl/evp.h>
#include <openssl/hmac.h>

#include "common/names.h"
#include "common/secret_mode.h"
#include "common/text.h"

namespace statcollect {
namespace {

Status CannotUseSecret(Code code, const std::string& path, const std::string& found) {
  return {code, "--alarm-webhook-secret-file: " + Printable(path) + ": " + found +
                    "; expected a file with mode 0600 that holds " +
                    std::to_string(kWebhookSecretBytesMin) +
                    " or more random characters, such as from: openssl rand -hex 32"};
}

}  // namespace

Result<std::string> ReadWebhookSecret(const std::string& path) {
  const int file = open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  const auto error_text = [] { return std::generic_category().message(errno); };
  if (file < 0) return CannotUseSecret(Code::kInvalidArgument, path, error_text());
  struct stat found {};
  std::array<char, kWebhookSecretBytesMax + 1> bytes{};
  const bool looked = fstat(file, &found) == 0;
  const ssize_t got =
      looked && S_ISREG(found.st_mode) ? read(file, bytes.data(), bytes.size()) : -1;
  close(file);
  if (got < 0)
    return CannotUseSecret(Code::kInvalidArgument, path, "it is not a plain file that can be read");
  if (!IsClosedToOthers(found))
    return CannotUseSecret(Code::kPermissionDenied, path, "others may read or change it");
  std::string secret(bytes.data(), static_cast<std::size_t>(got));
  const std::size_t end = secret.find_last_not_of(" \t\r\n");
  secret.resize(end == std::string::npos ? 0 : end + 1);
  if (secret.size() < kWebhookSecretBytesMin ||
      static_cast<std::size_t>(got) > kWebhookSecretBytesMax) {
    return CannotUseSecret(
        Code::kInvalidArgument, path,
        "it holds " + std::string(secret.size() < kWebhookSecretBytesMin ? "only " : "more than ") +
            std::to_string(std::min(secret.size(), kWebhookSecretBytesMax)) + " characters");
  }
  return secret;
}

std::string WebhookSignature(std::string_view secret, std::int64_t unix_seconds,
                             std::string_view body) {
  const std::string signed_text = std::to_string(unix_seconds) + "." + std::string(body);
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned size = 0;
  HMAC(EVP_sha256(), secret.data(), static_cast<int>(secret.size()),
       reinterpret_cast<const unsigned char*>(signed_text.data()), signed_text.size(),
       digest.data(), &size);
  return "v1=" + HexOf(std::span(digest).first(size));
}

}  // namespace statcollect
