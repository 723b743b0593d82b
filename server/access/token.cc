#include "server/access/token.h"

#include <sys/random.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <span>
#include <vector>

#include <openssl/crypto.h>
#include <openssl/sha.h>

#include "common/text.h"

namespace statcollect::access {
namespace {

constexpr std::string_view kPrefix = "stc_";
constexpr std::string_view kDigits = "0123456789abcdef";
constexpr std::string_view kScheme = "bearer";

bool IsHex(std::string_view text) {
  return text.find_first_not_of(kDigits) == std::string_view::npos;
}

}  // namespace

Result<std::string> RandomHex(std::size_t digits) {
  std::vector<std::uint8_t> random(digits / 2);
  std::size_t filled = 0;
  while (filled < random.size()) {
    const ssize_t got = getrandom(random.data() + filled, random.size() - filled, 0);
    if (got < 0 && errno != EINTR)
      return Status(Code::kInternal, "make a secret: the system gave no random bytes");
    filled += static_cast<std::size_t>(std::max<ssize_t>(got, 0));
  }
  return HexOf(random);
}

Result<std::string> MakeToken() {
  const auto random = RandomHex(kTokenIdBytes + kTokenSecretBytes);
  if (!random.ok()) return random;
  return std::string(kPrefix) + random->substr(0, kTokenIdBytes) + "_" +
         random->substr(kTokenIdBytes);
}

std::optional<std::string_view> TokenId(std::string_view token) {
  if (token.size() != kTokenBytes || !token.starts_with(kPrefix)) return std::nullopt;
  const std::string_view id = token.substr(kPrefix.size(), kTokenIdBytes);
  const std::string_view rest = token.substr(kPrefix.size() + kTokenIdBytes);
  if (!IsHex(id) || rest[0] != '_' || !IsHex(rest.substr(1))) return std::nullopt;
  return id;
}

bool HoldsToken(std::string_view text) {
  std::string plain;  // with the underscores that a URL may encode; everything else in a token is
                      // never encoded
  while (!text.empty()) {
    const bool encoded = text.starts_with("%5F") || text.starts_with("%5f");
    plain += encoded ? '_' : text.front();
    text.remove_prefix(encoded ? 3 : 1);
  }
  for (std::size_t at = plain.find(kPrefix); at != std::string::npos;
       at = plain.find(kPrefix, at + 1)) {
    if (TokenId(std::string_view(plain).substr(at, kTokenBytes))) return true;
  }
  return false;
}

Digest DigestOf(std::string_view token) {
  Digest digest{};
  SHA256(reinterpret_cast<const unsigned char*>(token.data()), token.size(), digest.data());
  return digest;
}

bool Equal(const Digest& a, const Digest& b) {
  return CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

std::string ToHex(const Digest& digest) { return HexOf(digest); }

std::optional<Digest> DigestFromHex(std::string_view text) {
  Digest digest{};
  if (text.size() != 2 * digest.size() || !IsHex(text)) return std::nullopt;
  for (std::size_t i = 0; i < digest.size(); ++i) {
    digest[i] =
        static_cast<std::uint8_t>(kDigits.find(text[2 * i]) << 4 | kDigits.find(text[2 * i + 1]));
  }
  return digest;
}

std::optional<std::string_view> BearerToken(std::string_view field) {
  field = Trimmed(field, " ");
  if (field.size() <= kScheme.size() || field[kScheme.size()] != ' ') return std::nullopt;
  for (std::size_t i = 0; i < kScheme.size(); ++i) {
    if (std::tolower(static_cast<unsigned char>(field[i])) != kScheme[i]) return std::nullopt;
  }
  return Trimmed(field.substr(kScheme.size()), " ");
}

}  // namespace statcollect::access
