#include "server/access/browser_sessions.h"

#include <algorithm>
#include <utility>

namespace statcollect::access {

bool IsSessionSecret(std::string_view text) {
  return text.size() == kSessionSecretBytes &&
         text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

// Drops what is too old, and of this token the oldest ones, until one more fits.
void BrowserSessions::MakeRoom(Entries& entries, const TokenReference& token, std::size_t most,
                               Time now) {
  std::erase_if(entries, [&](const auto& entry) { return entry.second.until <= now; });
  const auto is_of_token = [&](const auto& entry) { return entry.second.token.id == token.id; };
  while (static_cast<std::size_t>(std::count_if(entries.begin(), entries.end(), is_of_token)) >=
         most) {
    auto oldest = entries.end();
    for (auto entry = entries.begin(); entry != entries.end(); ++entry) {
      if (is_of_token(*entry) &&
          (oldest == entries.end() || entry->second.until < oldest->second.until))
        oldest = entry;
    }
    entries.erase(oldest);
  }
}

Result<std::string> BrowserSessions::MakeLink(const TokenReference& token, Time now) {
  auto secret = RandomHex(kSessionSecretBytes);
  if (!secret.ok()) return secret;
  MakeRoom(links_, token, kLinksMax, now);
  links_[DigestOf(*secret)] = {.token = token, .until = now + kLinkLife};
  return secret;
}

std::optional<TokenReference> BrowserSessions::TakeLink(std::string_view secret, Time now) {
  const auto taken = links_.extract(DigestOf(secret));
  if (taken.empty() || taken.mapped().until <= now) return std::nullopt;
  return taken.mapped().token;
}

Result<SessionSecrets> BrowserSessions::Open(const TokenReference& token, Time now) {
  STATCOLLECT_ASSIGN_OR_RETURN(auto cookie, RandomHex(kSessionSecretBytes));
  STATCOLLECT_ASSIGN_OR_RETURN(auto page, RandomHex(kSessionSecretBytes));
  MakeRoom(sessions_, token, kSessionsMax, now);
  sessions_[DigestOf(cookie)] = {
      .token = token, .page = DigestOf(page), .until = now + kSessionLife};
  return SessionSecrets{.cookie = std::move(cookie), .page = std::move(page)};
}

std::optional<TokenReference> BrowserSessions::Find(const SessionCredential& credential,
                                                    Time now) const {
  const auto found = sessions_.find(DigestOf(credential.cookie));
  if (found == sessions_.end() || found->second.until <= now) return std::nullopt;
  if (!Equal(found->second.page, DigestOf(credential.page))) return std::nullopt;
  return found->second.token;
}

void BrowserSessions::Close(const SessionCredential& credential, Time now) {
  if (Find(credential, now)) sessions_.erase(DigestOf(credential.cookie));
}

}  // namespace statcollect::access
