// Browsers that somebody with a token has logged in. A link is used once and becomes a session.
// Both stand for the token: they allow what it allows, for as long as it is valid. Kept in memory
// only, as hashes of their secrets.
#ifndef STATCOLLECT_SERVER_ACCESS_BROWSER_SESSIONS_H_
#define STATCOLLECT_SERVER_ACCESS_BROWSER_SESSIONS_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "common/status.h"
#include "server/access/token.h"

namespace statcollect::access {

// The token that a link or a session stands for.
struct TokenReference {
  std::string id;
  Digest digest{};
};

// What a browser sends of its session. The cookie alone is not enough: browsers send it to all
// ports of a host, whoever listens there. The other secret is known to scripts of the page's own
// origin only.
struct SessionCredential {
  std::string_view cookie, page;
  bool empty() const { return cookie.empty() && page.empty(); }
};

struct SessionSecrets {
  std::string cookie, page;
};

inline constexpr std::size_t kSessionSecretBytes = 64;  // hexadecimal digits
bool IsSessionSecret(std::string_view text);

// Not thread-safe.
class BrowserSessions {
 public:
  using Time = std::chrono::steady_clock::time_point;
  static constexpr std::chrono::seconds kLinkLife{300};
  static constexpr std::chrono::seconds kSessionLife{12 * 3600};
  // Of one token; a further one ends the oldest.
  static constexpr std::size_t kLinksMax = 16, kSessionsMax = 64;

  // A link's secret. kInternal: the system gives no random bytes.
  Result<std::string> MakeLink(const TokenReference& token, Time now);
  // The token of a link, which is used up by this. Absent: no such link, used, or too old.
  std::optional<TokenReference> TakeLink(std::string_view secret, Time now);
  // kInternal as above.
  Result<SessionSecrets> Open(const TokenReference& token, Time now);
  // Absent: no such session, ended, too old, or one of the secrets is wrong.
  std::optional<TokenReference> Find(const SessionCredential& credential, Time now) const;
  // Ends it if both secrets are right.
  void Close(const SessionCredential& credential, Time now);

 private:
  struct Entry {
    TokenReference token;
    Digest page{};  // of a session
    Time until{};
  };
  using Entries = std::map<Digest, Entry>;  // by the digest of the secret
  static void MakeRoom(Entries& entries, const TokenReference& token, std::size_t most, Time now);

  Entries links_, sessions_;
};

}  // namespace statcollect::access

#endif  // STATCOLLECT_SERVER_ACCESS_BROWSER_SESSIONS_H_
