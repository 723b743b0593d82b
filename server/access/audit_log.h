// The audit log: one line of JSON for each call that was refused, or that deletes, controls,
// captures or administers. Appended to <data directory>/audit.jsonl; a full file becomes
// audit.jsonl.1, and so on.
#ifndef STATCOLLECT_SERVER_ACCESS_AUDIT_LOG_H_
#define STATCOLLECT_SERVER_ACCESS_AUDIT_LOG_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/status.h"
#include "common/thread_annotations.h"

namespace statcollect::access {

struct AuditEntry {
  std::string principal;  // "token 0123456789ab", or "nobody"
  std::string address;    // of the caller, "ipv4:127.0.0.1:40000"
  std::string method;     // "/statcollect.v1.Admin/DeleteRun"
  std::string object;     // what the call is about: a run, or empty
  std::string project =
      {};               // of the object, or that the call names, or of the token; empty: nobody's
  std::string outcome;  // "ok", or the code and the reason
  std::uint64_t left_out = 0;  // refused calls that were not written since the line before
};

// kInvalidArgument unless a line's outcome may begin so: "ok", "error", "error 5: no run 'x'",
// "permission_denied", ...
Status CheckOutcome(const std::string& beginning);

// Which lines to find; empty fields match all.
struct AuditQuery {
  std::int64_t since_unix_nanos = 0;
  std::string principal, method;  // a part of it
  std::string outcome;            // how it begins
  std::string only_project =
      {};  // those of one project, and no others; lines of before there were projects are of none
  std::size_t limit = 100;  // the newest so many
};

struct AuditRecord {
  std::string time;  // "2026-01-31T12:34:56.789Z"
  AuditEntry entry;
};

struct AuditFound {
  std::vector<AuditRecord> records;  // oldest first
  bool more = false;                 // there are older ones
};

// Thread-safe. A line that cannot be written is reported to `log`, at most once a minute, and
// counted.
class AuditLog {
 public:
  static constexpr std::size_t kFileBytesMax = 16 << 20;
  static constexpr int kFilesKept = 4;  // in addition to the current one

  AuditLog(std::string path, const Clock& clock, std::function<void(const std::string&)> log,
           std::size_t file_bytes_max = kFileBytesMax);
  ~AuditLog();
  AuditLog(const AuditLog&) = delete;
  AuditLog& operator=(const AuditLog&) = delete;

  void Write(const AuditEntry& entry);
  // Reads up to all files, 80 MiB; calls do not wait for it. Lines that are no entries are passed
  // over.
  AuditFound Find(const AuditQuery& query) const;
  std::uint64_t lost() const;

 private:
  bool OpenFile() STATCOLLECT_REQUIRES(mutex_);
  void Rotate() STATCOLLECT_REQUIRES(mutex_);
  bool Append(const std::string& line) STATCOLLECT_REQUIRES(mutex_);

  const std::string path_;
  const Clock& clock_;
  const std::function<void(const std::string&)> log_;
  const std::size_t file_bytes_max_;
  mutable Mutex mutex_;
  int file_ STATCOLLECT_GUARDED_BY(mutex_) = -1;
  std::uint64_t bytes_ STATCOLLECT_GUARDED_BY(mutex_) = 0;
  std::uint64_t lost_ STATCOLLECT_GUARDED_BY(mutex_) = 0;
  std::chrono::steady_clock::time_point told_ STATCOLLECT_GUARDED_BY(mutex_);
};

}  // namespace statcollect::access

#endif  // STATCOLLECT_SERVER_ACCESS_AUDIT_LOG_H_
