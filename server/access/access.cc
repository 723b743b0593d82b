#include "server/access/access.h"

#include <sys/stat.h>

#include <algorithm>
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
          Shown(method) + ": " + found + "; expected a token with scope '" +
              std::string(ScopeName(scope)) +
              "', from the file that STATAGENT_TOKEN_FILE or STATCTL_TOKEN_FILE names, or as "
              "'Authorization: Bearer stc_...' over HTTP; " +
              HowToGet(scope)};
}

std::string_view OutcomeName(Code code) {
  if (code == Code::kUnauthenticated) return "unauthenticated";
  return code == Code::kPermissionDenied ? "permission_denied" : "invalid_argument";
}

// The project that the call is about: what it names, else the one that the principal is for, else
// the default.
Status ChooseProject(const Caller& caller, Principal* principal) {
  if (caller.project.size() > 1) {
    return {Code::kInvalidArgument, Shown(caller.method) +
                                        ": found several projects; expected one field " +
                                        std::string(kProjectField)};
  }
  const std::string& only = principal->only_project;
  if (const MethodRule* rule = FindRule(caller.method);
      rule != nullptr && rule->all_projects && !only.empty()) {
    return {Code::kPermissionDenied,
            Shown(caller.method) + ": " + principal->Name() + " is for project '" + only +
                "', and the call is about the runs of all projects; expected a token for all: "
                "statcollectord token create, without --project"};
  }
  if (caller.project.empty()) {
    if (!only.empty()) principal->project = only;
    return Status::Ok();
  }
  const std::string named(caller.project.front());
  STATCOLLECT_RETURN_IF_ERROR(ValidateProjectName(named));
  if (!only.empty() && named != only) {
    return {Code::kPermissionDenied,
            Shown(caller.method) + ": " + principal->Name() + " is for project '" + only +
                "', and the call is about project '" + named +
                "'; expected a token for it: statcollectord token create --project " + named};
  }
  principal->project = named;
  return Status::Ok();
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
    return Status(tokens.status().code(),
                  tokens.status().message() +
                      (absent ? "; statcollectord token create --token-file makes it" : ""));
  }
  MutexLock lock(access->mutex_);
  access->TurnOn();
  access->tokens_ = *std::move(tokens);
  access->stamp_ = stamp;
  return access;
}

bool AccessControl::on() const {
  MutexLock lock(mutex_);
  return on_ || !options_.certificates.empty();
}

AccessControl::Stamp AccessControl::StampOf(const std::string& path) {
  struct stat found {};
  if (stat(path.c_str(), &found) != 0) return {};
  return {.inode = found.st_ino,
          .size = static_cast<std::uint64_t>(found.st_size),
          .changed_nanos = found.st_ctim.tv_sec * 1'000'000'000 + found.st_ctim.tv_nsec};
}

void AccessControl::TurnOn() {
  if (!std::exchange(on_, true) && options_.tokens_found) options_.tokens_found();
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
    TurnOn();
    tokens_ = *std::move(tokens);
  } else if (tokens.status().code() == Code::kNotFound) {
    if (on_) options_.log("tokens: the file is gone; every token is refused until it is back");
    tokens_.clear();
  } else {
    TurnOn();  // someone wants authorization
    options_.log(tokens.status().message() + "; the tokens known so far stay");
  }
}

Result<Principal> AccessControl::Check(const Caller& caller) {
  auto decided = Decide(caller, FindRule(caller.method));
  if (!decided.ok()) AuditRefusal(caller, decided.status());
  return decided;
}

Result<Principal> AccessControl::Decide(const Caller& caller, const MethodRule* rule) {
  Principal principal;
  {
    MutexLock lock(mutex_);
    LookAgain();
    const bool enforced = on_ || !options_.certificates.empty();
    if (!enforced) {
      if (!caller.certificate.empty())
        principal.certificate = Printable(caller.certificate.front());
    } else if (rule == nullptr) {
      return Status(
          Code::kPermissionDenied,
          Shown(caller.method) + ": it is not in the table of methods; no token allows it");
    } else if (rule->scope) {
      STATCOLLECT_RETURN_IF_ERROR(Authenticate(caller, *rule, &principal));
    }
  }
  STATCOLLECT_RETURN_IF_ERROR(ChooseProject(caller, &principal));
  return principal;
}

Status AccessControl::Authenticate(const Caller& caller, const MethodRule& rule,
                                   Principal* principal) const {
  const Scope scope = *rule.scope;
  if (caller.authorization.size() > 1)
    return Unauthenticated(rule.method, "found several Authorization fields", scope);
  if (!caller.authorization.empty())
    return CheckToken(caller.authorization.front(), rule, principal);
  if (!on_ || caller.session.empty()) return CheckCertificate(caller, rule, principal);
  const auto session = sessions_.Find(caller.session, clock_.Now());
  if (session) return Allow(*session, rule, principal);
  return {Code::kUnauthenticated,
          Shown(rule.method) +
              ": the browser's session has ended, or the request is not from its page; log in "
              "again, with the link that statctl open prints"};
}

Status AccessControl::CheckToken(std::string_view field, const MethodRule& rule,
                                 Principal* principal) const {
  const auto token = BearerToken(field);
  const auto id = token ? TokenId(*token) : std::nullopt;
  if (!id) return Unauthenticated(rule.method, "found something that is not a token", *rule.scope);
  return Allow({.id = std::string(*id), .digest = DigestOf(*token)}, rule, principal);
}

Status AccessControl::Allow(const TokenReference& token, const MethodRule& rule,
                            Principal* principal) const {
  const Scope scope = *rule.scope;
  const auto found = tokens_.find(token.id);
  if (found == tokens_.end() || !Equal(found->second.digest, token.digest))
    return Unauthenticated(rule.method, "the collector does not know this token", scope);
  const TokenRecord& record = found->second;
  if (const Status valid = CheckRecord(found->first, record); !valid.ok())
    return Unauthenticated(rule.method, valid.message(), scope);
  if (!record.scopes.Has(scope)) {
    return Status(Code::kPermissionDenied, Shown(rule.method) + ": token " + found->first +
                                               " has scope '" + record.scopes.ToString() +
                                               "'; expected '" + std::string(ScopeName(scope)) +
                                               "'; " + HowToGet(scope));
  }
  principal->id = found->first;
  principal->digest = token.digest;
  principal->scopes = record.scopes;
  principal->only_project = record.project;
  return Status::Ok();
}

Status AccessControl::CheckCertificate(const Caller& caller, const MethodRule& rule,
                                       Principal* principal) const {
  const Scope scope = *rule.scope;
  for (const std::string& name : caller.certificate) {
    const auto found = options_.certificates.find(name);
    if (found == options_.certificates.end()) continue;
    const Grant& grant = found->second;
    if (!grant.scopes.Has(scope)) {
      return {Code::kPermissionDenied,
              Shown(rule.method) + ": certificate " + name + " has scope '" +
                  grant.scopes.ToString() + "'; expected '" + std::string(ScopeName(scope)) +
                  "' in the collector's --tls-principal, or a token with it"};
    }
    principal->certificate = name;
    principal->scopes = grant.scopes;
    principal->only_project = grant.project;
    return Status::Ok();
  }
  if (options_.certificates.empty() || caller.certificate.empty())
    return Unauthenticated(rule.method, "no token was sent", scope);
  return Unauthenticated(rule.method,
                         "no token was sent, and the certificate of " +
                             Printable(caller.certificate.front()) +
                             " is in no --tls-principal of the collector",
                         scope);
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
  if (!on_ && options_.certificates.empty()) return Status::Ok();
  // These change with a restart only; one without a grant was let in before there were tokens.
  if (principal.id.empty() && options_.certificates.contains(principal.certificate))
    return Status::Ok();
  if (principal.id.empty())
    return {Code::kUnauthenticated, "authorization was turned on, and this call has no token"};
  const auto found = tokens_.find(principal.id);
  if (found == tokens_.end() || !Equal(found->second.digest, principal.digest))
    return {Code::kUnauthenticated, "token " + principal.id + " was removed"};
  if (!(found->second.scopes == principal.scopes))
    return {Code::kUnauthenticated, "the scopes of token " + principal.id + " were changed"};
  if (found->second.project != principal.only_project)
    return {Code::kUnauthenticated, "the project of token " + principal.id + " was changed"};
  return CheckRecord(found->first, found->second);
}

const TokenRecords::value_type* AccessControl::FindToken(const Caller& caller) const {
  const auto token =
      caller.authorization.size() == 1 ? BearerToken(caller.authorization.front()) : std::nullopt;
  const auto id = token ? TokenId(*token) : std::nullopt;
  const auto session = on_ && caller.authorization.empty()
                           ? sessions_.Find(caller.session, clock_.Now())
                           : std::optional<TokenReference>();
  const auto found = id ? tokens_.find(*id) : session ? tokens_.find(session->id) : tokens_.end();
  return found == tokens_.end() ? nullptr : &*found;
}

std::string AccessControl::NameOf(const Caller& caller) const {
  {
    // Only an id that the collector knows: the rest is whatever a stranger has sent.
    MutexLock lock(mutex_);
    if (const auto* token = FindToken(caller))
      return "token " + token->first + (caller.authorization.empty() ? " (browser)" : "");
  }
  if (caller.certificate.empty()) return "nobody";
  const auto known =
      std::find_if(caller.certificate.begin(), caller.certificate.end(),
                   [&](const auto& name) { return options_.certificates.contains(name); });
  return "certificate " +
         Printable(known != caller.certificate.end() ? *known : caller.certificate.front());
}

std::string AccessControl::ProjectOf(const Caller& caller) const {
  const MethodRule* const rule = FindRule(caller.method);
  if (rule != nullptr && rule->all_projects) return {};
  if (caller.project.size() == 1 && ValidateProjectName(std::string(caller.project.front())).ok())
    return std::string(caller.project.front());
  const auto of = [](const std::string& only) {
    return only.empty() ? std::string(kDefaultProject) : only;
  };
  {
    MutexLock lock(mutex_);
    if (const auto* token = FindToken(caller)) return of(token->second.project);
    if (!on_ && options_.certificates.empty()) return std::string(kDefaultProject);
  }
  for (const std::string& name : caller.certificate) {
    const auto found = options_.certificates.find(name);
    if (found != options_.certificates.end()) return of(found->second.project);
  }
  return {};
}

Result<std::string> AccessControl::MakeLink(const Caller& caller) {
  if (caller.authorization.empty()) {
    MutexLock lock(mutex_);
    LookAgain();
    if (!on_) return std::string();  // whoever is let in by a certificate needs no link
  }
  STATCOLLECT_ASSIGN_OR_RETURN(auto allowed, Decide(caller, FindRule(caller.method)));
  if (allowed.id.empty()) return std::string();
  MutexLock lock(mutex_);
  return sessions_.MakeLink({.id = allowed.id, .digest = allowed.digest}, clock_.Now());
}

Result<SessionSecrets> AccessControl::LogIn(std::string_view link, std::string_view address) {
  const auto log_in = [&]() -> Result<SessionSecrets> {
    MutexLock lock(mutex_);
    LookAgain();
    const auto token = sessions_.TakeLink(link, clock_.Now());
    if (!token)
      return Status(Code::kUnauthenticated,
                    "log in: the link is not valid; expected one that statctl open printed in the "
                    "last 5 minutes and that nobody has used; make another one");
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
  const Caller browser{.authorization = {},
                       .method = caller.method,
                       .address = address,
                       .session = {.cookie = session->cookie, .page = session->page}};
  audit_.Write({.principal = NameOf(browser),
                .address = std::string(address),
                .method = std::string(caller.method),
                .object = {},
                .project = ProjectOf(browser),
                .outcome = "ok"});
  return session;
}

void AccessControl::LogOut(const SessionCredential& session, std::string_view address) {
  const Caller browser{.authorization = {}, .method = {}, .address = address, .session = session};
  const std::string name = NameOf(browser), project = ProjectOf(browser);
  {
    MutexLock lock(mutex_);
    if (!sessions_.Find(session, clock_.Now())) return;
    sessions_.Close(session, clock_.Now());
  }
  audit_.Write({.principal = name,
                .address = std::string(address),
                .method = "/session/logout",
                .object = {},
                .project = project,
                .outcome = "ok"});
}

AccessControl::Counters AccessControl::counters() const {
  return {.unauthenticated = unauthenticated_.load(),
          .permission_denied = permission_denied_.load(),
          .streams_refused = streams_refused_.load()};
}

void AccessControl::AuditRefusal(const Caller& caller, const Status& why) {
  if (why.code() == Code::kUnauthenticated) unauthenticated_.fetch_add(1);
  if (why.code() == Code::kPermissionDenied) permission_denied_.fetch_add(1);
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
                .project = ProjectOf(caller),
                .outcome = std::string(OutcomeName(why.code())) + ": " + why.message(),
                .left_out = *left_out});
}

}  // namespace statcollect::access
