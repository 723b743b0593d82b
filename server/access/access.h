// Access control: checks the token of each call against the file of tokens and the table of scopes.
#ifndef STATCOLLECT_SERVER_ACCESS_ACCESS_H_
#define STATCOLLECT_SERVER_ACCESS_ACCESS_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "common/clock.h"
#include "common/status.h"
#include "common/thread_annotations.h"
#include "server/access/audit_log.h"
#include "server/access/browser_sessions.h"
#include "server/access/failure_limiter.h"
#include "server/access/scopes.h"
#include "server/access/token_file.h"

namespace statcollect::access {

// Who makes a call.
struct Principal {
  std::string id;  // of the token; empty: authorization is off
  Digest digest{};
  ScopeSet scopes;
  std::string Name() const { return id.empty() ? "nobody" : "token " + id; }
};

// One call as it comes in. The texts may be hostile.
struct Caller {
  std::vector<std::string_view> authorization;  // the Authorization fields
  std::string_view method;                      // as in the table of scopes
  std::string_view address;                     // "ipv4:127.0.0.1:40000"
  SessionCredential session = {};               // of a browser, instead of a token
};

// Thread-safe. A check takes a few microseconds.
class AccessControl {
 public:
  struct Options {
    std::string token_file;
    bool required = false;  // the file must exist
    std::function<void(const std::string&)> log;
  };
  // Authorization is on from the moment the file exists, until the process ends. Errors: those of ReadTokens.
  // `clock` and `audit` must outlive it.
  static Result<std::unique_ptr<AccessControl>> Open(Options options, const Clock& clock, AuditLog& audit);

  bool on() const;
  // kUnauthenticated: no token, or not a valid one; kPermissionDenied: it lacks the method's scope, or the
  // method is in no table. A refusal is audited.
  Result<Principal> Check(const Caller& caller);
  // Who says to make the call, for the audit log: "token 0123456789ab", with " (browser)" behind it, or "nobody".
  std::string NameOf(const Caller& caller);

  // A secret that logs a browser in as the caller, who has a token and passes Check. Empty: authorization is off.
  Result<std::string> MakeLink(const Caller& caller);
  // Uses up the link's secret, and audits that. kUnauthenticated: no such link, used, too old, or its token is no longer
  // valid. kInternal: no random bytes.
  Result<SessionSecrets> LogIn(std::string_view link, std::string_view address);
  void LogOut(const SessionCredential& session, std::string_view address);

  // For calls that stay open: the reason why the token is no longer accepted.
  Status StillValid(const Principal& principal);

  // Writes down that a call was refused, unless there are too many of them.
  void AuditRefusal(const Caller& caller, const Status& why);

  AuditLog& audit() { return audit_; }

 private:
  AccessControl(Options options, const Clock& clock, AuditLog& audit);

  // What tells that the file was changed; all zero: no file.
  struct Stamp {
    std::uint64_t inode = 0, size = 0;
    std::int64_t changed_nanos = 0;
    bool operator==(const Stamp&) const = default;
  };
  static Stamp StampOf(const std::string& path);
  void LookAgain() STATCOLLECT_REQUIRES(mutex_);
  Result<Principal> Decide(const Caller& caller, const MethodRule* rule);
  Result<Principal> Authenticate(const Caller& caller, const MethodRule& rule) STATCOLLECT_REQUIRES(mutex_);
  // A token that the caller has proved to have.
  Result<Principal> Allow(const TokenReference& token, const MethodRule& rule) const
      STATCOLLECT_REQUIRES(mutex_);
  Status CheckRecord(const std::string& id, const TokenRecord& record) const;

  const Options options_;
  const Clock& clock_;
  AuditLog& audit_;
  mutable Mutex mutex_;  // guards everything below
  bool on_ STATCOLLECT_GUARDED_BY(mutex_) = false;
  TokenRecords tokens_ STATCOLLECT_GUARDED_BY(mutex_);
  BrowserSessions sessions_ STATCOLLECT_GUARDED_BY(mutex_);
  Stamp stamp_ STATCOLLECT_GUARDED_BY(mutex_);
  std::chrono::steady_clock::time_point looked_ STATCOLLECT_GUARDED_BY(mutex_);
  FailureLimiter limiter_ STATCOLLECT_GUARDED_BY(mutex_);
};

}  // namespace statcollect::access

#endif  // STATCOLLECT_SERVER_ACCESS_ACCESS_H_
