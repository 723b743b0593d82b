// The file of tokens: one line each, "<id> <SHA-256> <scopes> <created> <expires> <revoked>
// [<project>]"; times are seconds since 1970, "-" is none; without a project a token is for all;
// lines that begin with # are remarks. Only its owner may read it.
#ifndef STATCOLLECT_SERVER_ACCESS_TOKEN_FILE_H_
#define STATCOLLECT_SERVER_ACCESS_TOKEN_FILE_H_

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "common/status.h"
#include "server/access/scopes.h"
#include "server/access/token.h"

namespace statcollect::access {

inline constexpr std::size_t kTokensMax = 10'000;
inline constexpr std::size_t kTokenFileBytesMax = 4 << 20;

struct TokenRecord {
  Digest digest{};
  ScopeSet scopes;
  std::int64_t created = 0;             // seconds since 1970, like the following
  std::optional<std::int64_t> expires;  // absent: never
  std::optional<std::int64_t> revoked;  // absent: not revoked
  std::string project = {};             // empty: for all
};
using TokenRecords = std::map<std::string, TokenRecord, std::less<>>;  // by id

// kInvalidArgument names the line.
Result<TokenRecords> ParseTokens(std::string_view text);
std::string FormatTokens(const TokenRecords& records);

// kNotFound: no such file; kPermissionDenied: not a plain file of this user or root that is closed
// to others (common/secret_mode.h); kInvalidArgument: not as above.
Result<TokenRecords> ReadTokens(const std::string& path);

// Reads the file (absent: no tokens), lets `change` alter the records, and replaces the file at
// once, with mode 0600, unless `change` fails. Waits for others that change it.
Status ChangeTokens(const std::string& path, const std::function<Status(TokenRecords&)>& change);

}  // namespace statcollect::access

#endif  // STATCOLLECT_SERVER_ACCESS_TOKEN_FILE_H_
