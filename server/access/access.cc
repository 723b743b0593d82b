#include "server/access/access.h"

#include <sys/stat.h>

#include <utility>

#include "common/names.h"
#include "server/access/token.h"

namespace statcollect::access {
namespace {

// For the calls that stay open, which are many; a new call always looks.
constexpr std::chrono::milliseconds kLookInterval{100};

// "Query/Diff" of "/statcollect.v1.Query/Diff".
std::string Shown(std::string_view method) {
  constexpr std::string_view kPackage = "/statcollect.v1.";
  if (method.starts_with(kPackage)) method.remove_prefix(kPackage.size());
  return Printable(method);
}

std::string HowToGet(Scope scope) {
  return "statcollectord token create --scope " + std::string(ScopeName(scope)) + " makes one";
}

Status Unauthenticated(std::string_view method, const std::string& found, Scope scope) {
  return {Code::kUnauthenticated,
          Shown(method) + ": " + found + "; expected a token with scope '" + std::string(ScopeName(scope)) +
              "', from the file that STATAGENT_TOKEN_FILE or STATCTL_TOKEN_FILE names, or as 'Authorization: "
              "Bearer stc_...' over HTTP; " +
              HowToGet(scope)};
}

// Without the port, which differs for each connection.
std::string_view HostOf(std::string_view address) { return address.substr(0, address.rfind(':')); }

}  // namespace

AccessControl::AccessControl(Options options, const Clock& clock, AuditLog& audit)
    : options_(std::move(options)), clock_(clock), audit_(audit), looked_(clock.Now()) {}

Result<std::unique_ptr<AccessControl>> AccessControl::Open(Options options, const Clock& clock,
                                                           AuditLog& audit) {
  std::unique_ptr<AccessControl> access(new AccessControl(std::move(options), clock, audit));
  const std::string& path = access->options_.token_file;
  const Stamp stamp = StampOf(path);
  auto tokens = ReadTokens(path);
  if (!tokens.ok()) {
    const bool absent = tokens.status().code() == Code::kNotFound;
    if (absent && !access->options_.required) return access;
    return Status(
        tokens.status().code(),
        tokens.status().message() + (absent ? "; statcollectord token create --token-file makes it" : ""));
  }
  MutexLock lock(access->mutex_);
  access->on_ = true;
  access->tokens_ = *std::move(tokens);
  access->stamp_ = stamp;
  return access;
}

bool AccessControl::on() const {
  MutexLock lock(mutex_);
  return on_;
}

AccessControl::Stamp AccessControl::StampOf(const std::string& path) {
  struct stat found {};
  if (stat(path.c_str(), &found) != 0) return {};
  return {.inode = found.st_ino,
          .size = static_cast<std::uint64_t>(found.st_size),
          .changed_nanos = found.st_ctim.tv_sec * 1'000'000'000 + found.st_ctim.tv_nsec};
}

// A file that cannot be used leaves the tokens as they were; one that is gone leaves none.
void AccessControl::LookAgain() {
  looked_ = clock_.Now();
  const Stamp stamp = StampOf(options_.token_file);
  if (stamp == stamp_) return;
  stamp_ = stamp;
  auto tokens = ReadTokens(options_.token_file);
  if (tokens.ok()) {
    options_.log((on_ ? "tokens: read again, " : "tokens: authorization is on from now on, ") +
                 std::to_string(tokens->size()) + " tokens");
    on_ = true;
    tokens_ = *std::move(tokens);
  } else if (tokens.status().code() == Code::kNotFound) {
    if (on_) options_.log("tokens: the file is gone; every token is refused until it is back");
    tokens_.clear();
  } else {
    on_ = true;  // someone wants authorization
    options_.log(tokens.status().message() + "; the tokens known so far stay");
  }
}

Result<Principal> AccessControl::Check(const Caller& caller) {
  auto decided = Decide(caller, FindRule(caller.method));
  if (!decided.ok()) AuditRefusal(caller, decided.status());
  return decided;
}

Result<Principal> AccessControl::Decide(const Caller& caller, const MethodRule* rule) {
  MutexLock lock(mutex_);
  LookAgain();
  if (!on_) return Principal{};
  if (rule == nullptr) {
    return Status(Code::kPermissionDenied,
                  Shown(caller.method) + ": it is not in the table of methods; no token allows it");
  }
  if (!rule->scope) return Principal{};
  return Authenticate(caller, *rule);
}

Result<Principal> AccessControl::Authenticate(const Caller& caller, const MethodRule& rule) {
  const Scope scope = *rule.scope;
  if (caller.authorization.empty() && !caller.session.empty()) {
    const auto session = sessions_.Find(caller.session, clock_.Now());
    if (session) return Allow(*session, rule);
    return Status(Code::kUnauthenticated,
                  Shown(rule.method) +
                      ": the browser's session has ended, or the request is not from its page; log in "
                      "again, with the link that statctl open prints");
  }
  if (caller.authorization.empty()) return Unauthenticated(rule.method, "no token was sent", scope);
  if (caller.authorization.size() > 1)
    return Unauthenticated(rule.method, "found several Authorization fields", scope);
  const auto token = BearerToken(caller.authorization.front());
  const auto id = token ? TokenId(*token) : std::nullopt;
  if (!id) return Unauthenticated(rule.method, "found something that is not a token", scope);
  return Allow({.id = std::string(*id), .digest = DigestOf(*token)}, rule);
}

Result<Principal> AccessControl::Allow(const TokenReference& token, const MethodRule& rule) const {
  const Scope scope = *rule.scope;
  const auto found = tokens_.find(token.id);
  if (found == tokens_.end() || !Equal(found->second.digest, token.digest))
    return Unauthenticated(rule.method, "the collector does not know this token", scope);
  const TokenRecord& record = found->second;
  if (const Status valid = CheckRecord(found->first, record); !valid.ok())
    return Unauthenticated(rule.method, valid.message(), scope);
  if (!record.scopes.Has(scope)) {
    return Status(Code::kPermissionDenied, Shown(rule.method) + ": token " + found->first + " has scope '" +
                                               record.scopes.ToString() + "'; expected '" +
                                               std::string(ScopeName(scope)) + "'; " + HowToGet(scope));
  }
  return Principal{.id = found->first, .digest = token.digest, .scopes = record.scopes};
}

Status AccessControl::CheckRecord(const std::string& id, const TokenRecord& record) const {
  if (record.revoked) return {Code::kUnauthenticated, "token " + id + " was revoked"};
  if (record.expires && clock_.UnixNanos() / 1'000'000'000 >= *record.expires)
    return {Code::kUnauthenticated, "token " + id + " has expired"};
  return Status::Ok();
}

Status AccessControl::StillValid(const Principal& principal) {
  MutexLock lock(mutex_);
  if (clock_.Now() - looked_ >= kLookInterval) LookAgain();
  if (!on_) return Status::Ok();
  if (principal.id.empty())
    return {Code::kUnauthenticated, "authorization was turned on, and this call has no token"};
  const auto found = tokens_.find(principal.id);
  if (found == tokens_.end() || !Equal(found->second.digest, principal.digest))
    return {Code::kUnauthenticated, "token " + principal.id + " was removed"};
  if (!(found->second.scopes == principal.scopes))
    return {Code::kUnauthenticated, "the scopes of token " + principal.id + " were changed"};
  return CheckRecord(found->first, found->second);
}

// Only an id that the collector knows: the rest is whatever a stranger has sent.
std::string AccessControl::NameOf(const Caller& caller) {
  MutexLock lock(mutex_);
  if (!on_) return Principal().Name();
  if (caller.authorization.empty()) {
    const auto session = sessions_.Find(caller.session, clock_.Now());
    return session ? "token " + session->id + " (browser)" : Principal().Name();
  }
  const auto token =
      caller.authorization.size() == 1 ? BearerToken(caller.authorization.front()) : std::nullopt;
  const auto id = token ? TokenId(*token) : std::nullopt;
  return id && tokens_.find(*id) != tokens_.end() ? "token " + std::string(*id) : Principal().Name();
}

Result<std::string> AccessControl::MakeLink(const Caller& caller) {
  auto allowed = Decide(caller, FindRule(caller.method));
  if (!allowed.ok()) return allowed.status();
  if (allowed->id.empty()) return std::string();
  MutexLock lock(mutex_);
  return sessions_.MakeLink({.id = allowed->id, .digest = allowed->digest}, clock_.Now());
}

Result<SessionSecrets> AccessControl::LogIn(std::string_view link, std::string_view address) {
  const auto log_in = [&]() -> Result<SessionSecrets> {
    MutexLock lock(mutex_);
    LookAgain();
    const auto token = sessions_.TakeLink(link, clock_.Now());
    if (!token)
      return Status(
          Code::kUnauthenticated,
          "log in: the link is not valid; expected one that statctl open printed in the last 5 minutes and "
          "that nobody has used; make another one");
    const auto found = tokens_.find(token->id);
    const Status valid = found == tokens_.end() || !Equal(found->second.digest, token->digest)
                             ? Status(Code::kUnauthenticated, "token " + token->id + " was removed")
                             : CheckRecord(found->first, found->second);
    if (!valid.ok()) return Status(valid.code(), "log in: " + valid.message());
    return sessions_.Open(*token, clock_.Now());
  };
  auto session = log_in();
  const Caller caller{.authorization = {}, .method = "/session/login", .address = address};
  if (!session.ok()) {
    AuditRefusal(caller, session.status());
    return session;
  }
  audit_.Write({.principal = NameOf({.authorization = {},
                                     .method = caller.method,
                                     .address = address,
                                     .session = {.cookie = session->cookie, .page = session->page}}),
                .address = std::string(address),
                .method = std::string(caller.method),
                .object = {},
                .outcome = "ok"});
  return session;
}

void AccessControl::LogOut(const SessionCredential& session, std::string_view address) {
  const std::string name =
      NameOf({.authorization = {}, .method = {}, .address = address, .session = session});
  {
    MutexLock lock(mutex_);
    if (!sessions_.Find(session, clock_.Now())) return;
    sessions_.Close(session, clock_.Now());
  }
  audit_.Write({.principal = name,
                .address = std::string(address),
                .method = "/session/logout",
                .object = {},
                .outcome = "ok"});
}

void AccessControl::AuditRefusal(const Caller& caller, const Status& why) {
  std::optional<std::uint64_t> left_out;
  {
    MutexLock lock(mutex_);
    left_out = limiter_.Admit(HostOf(caller.address), clock_.Now());
  }
  if (!left_out) return;
  audit_.Write({.principal = NameOf(caller),
                .address = std::string(caller.address),
                .method = std::string(caller.method),
                .object = {},
                .outcome = std::string(why.code() == Code::kUnauthenticated ? "unauthenticated"
                                                                            : "permission_denied") +
                           ": " + why.message(),
                .left_out = *left_out});
}

}  // namespace statcollect::access
