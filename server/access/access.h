// Access control: checks the token of each call against the file of tokens and the table of scopes.
#ifndef STATCOLLECT_SERVER_ACCESS_ACCESS_H_
#define STATCOLLECT_SERVER_ACCESS_ACCESS_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "common/clock.h"
#include "common/project.h"
#include "common/status.h"
#include "common/thread_annotations.h"
#include "server/access/audit_log.h"
#include "server/access/browser_sessions.h"
#include "server/access/failure_limiter.h"
#include "server/access/grants.h"
#include "server/access/scopes.h"
#include "server/access/token_file.h"

namespace statcollect::access {

// Who makes a call. Without an id or a certificate, authorization is off.
struct Principal {
  std::string id;           // of the token
  std::string certificate;  // a name in the client's certificate
  Digest digest{};
  ScopeSet scopes;
  std::string only_project;                            // the one that it is for; empty: all
  std::string project = std::string(kDefaultProject);  // that the call is about
  bool IsNobody() const { return id.empty() && certificate.empty(); }
  std::string Name() const {
    if (!id.empty()) return "token " + id;
    return certificate.empty() ? "nobody" : "certificate " + certificate;
  }
};

// One call as it comes in. The texts may be hostile.
struct Caller {
  std::vector<std::string_view> authorization;  // the Authorization fields
  std::string_view method;                      // as in the table of scopes
  std::string_view address;                     // "ipv4:127.0.0.1:40000"
  std::vector<std::string> certificate =
      {};  // names in the client's certificate, which was verified
  std::vector<std::string_view> project = {};  // fields that name a project
  SessionCredential session = {};              // of a browser, instead of a token
};

// Thread-safe. A check takes a few microseconds.
class AccessControl {
 public:
  struct Options {
    std::string token_file;
    bool required = false;     // the file must exist
    Grants certificates = {};  // by a name in a client's certificate
    std::function<void(const std::string&)> log;
    // Called when tokens are first read, at the start or later: from then on they are expected.
    // Must not call back.
    std::function<void()> tokens_found = {};
  };
  // Authorization is on if certificates have grants, or from the moment the file exists, until the
  // process ends. A call with a token has what the token allows; one without it what its
  // certificate does. Errors: those of ReadTokens. `clock` and `audit` must outlive it.
  static Result<std::unique_ptr<AccessControl>> Open(Options options, const Clock& clock,
                                                     AuditLog& audit);

  bool on() const;
  // kUnauthenticated: no token, or not a valid one; kPermissionDenied: it lacks the method's scope
  // or is for another project, or the method is in no table; kInvalidArgument: not the name of a
  // project. A refusal is audited.
  Result<Principal> Check(const Caller& caller);
  // Who says to make the call, for the audit log: "token 0123456789ab", with " (browser)" behind
  // it, "certificate rank7", or "nobody".
  std::string NameOf(const Caller& caller) const;
  // For the audit log, also of a call that was refused: the project that it names, else the one
  // that its token or certificate is for, else the default. Empty: nobody's, since the caller is
  // not known.
  std::string ProjectOf(const Caller& caller) const;

  // A secret that logs a browser in as the caller, who has a token and passes Check. Empty:
  // authorization is off.
  Result<std::string> MakeLink(const Caller& caller);
  // Uses up the link's secret, and audits that. kUnauthenticated: no such link, used, too old, or
  // its token is no longer valid. kInternal: no random bytes.
  Result<SessionSecrets> LogIn(std::string_view link, std::string_view address);
  void LogOut(const SessionCredential& session, std::string_view address);

  // For calls that stay open: the reason why the token is no longer accepted.
  Status StillValid(const Principal& principal);

  // A call that was allowed, and refused because its caller has too many open.
  void CountRefusedStream() { streams_refused_.fetch_add(1); }
  struct Counters {
    std::uint64_t unauthenticated = 0, permission_denied = 0, streams_refused = 0;
  };
  Counters counters() const;
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
  // The token that the caller shows, without a look at its secret; null: none that is known.
  const TokenRecords::value_type* FindToken(const Caller& caller) const
      STATCOLLECT_REQUIRES(mutex_);
  void TurnOn() STATCOLLECT_REQUIRES(mutex_);
  void LookAgain() STATCOLLECT_REQUIRES(mutex_);
  Result<Principal> Decide(const Caller& caller, const MethodRule* rule);
  // Fills all but the project.
  Status Authenticate(const Caller& caller, const MethodRule& rule, Principal* principal) const
      STATCOLLECT_REQUIRES(mutex_);
  Status CheckToken(std::string_view field, const MethodRule& rule, Principal* principal) const
      STATCOLLECT_REQUIRES(mutex_);
  // A token that the caller has proved to have.
  Status Allow(const TokenReference& token, const MethodRule& rule, Principal* principal) const
      STATCOLLECT_REQUIRES(mutex_);
  Status CheckCertificate(const Caller& caller, const MethodRule& rule, Principal* principal) const;
  Status CheckRecord(const std::string& id, const TokenRecord& record) const;

  const Options options_;
  const Clock& clock_;
  AuditLog& audit_;
  std::atomic<std::uint64_t> unauthenticated_{0}, permission_denied_{0}, streams_refused_{0};
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
