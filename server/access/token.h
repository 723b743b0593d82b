// Tokens: stc_<id>_<secret>. The id names a token in lists and logs; the secret is 256 random bits,
// of which the collector keeps only a hash.
#ifndef STATCOLLECT_SERVER_ACCESS_TOKEN_H_
#define STATCOLLECT_SERVER_ACCESS_TOKEN_H_

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "common/status.h"

namespace statcollect::access {

inline constexpr std::size_t kTokenIdBytes = 12;      // lower-case hexadecimal digits
inline constexpr std::size_t kTokenSecretBytes = 64;  // the same
inline constexpr std::size_t kTokenBytes = 4 + kTokenIdBytes + 1 + kTokenSecretBytes;

using Digest = std::array<std::uint8_t, 32>;

// So many random hexadecimal digits, an even number. kInternal: the system gives no random bytes.
Result<std::string> RandomHex(std::size_t digits);

// A random token. kInternal: the system gives no random bytes.
Result<std::string> MakeToken();

// The id in a token that is well formed; absent otherwise. Reads kTokenBytes at most.
std::optional<std::string_view> TokenId(std::string_view token);

// Whether a whole token is anywhere in the text, also with '_' as "%5F". Names may begin like a
// token.
bool HoldsToken(std::string_view text);

// SHA-256 of the whole token.
Digest DigestOf(std::string_view token);
// Takes equally long for all digests.
bool Equal(const Digest& a, const Digest& b);

std::string ToHex(const Digest& digest);
std::optional<Digest> DigestFromHex(std::string_view text);

// The token in an Authorization field, "Bearer stc_..."; absent if it has another form. The
// scheme's case and blanks around the token do not matter.
std::optional<std::string_view> BearerToken(std::string_view field);

}  // namespace statcollect::access

#endif  // STATCOLLECT_SERVER_ACCESS_TOKEN_H_
