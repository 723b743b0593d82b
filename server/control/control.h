// The collector's own status and administration, as an interface: ingest implements it, api and the
// HTTP pages use it, so that neither depends on the other.
#ifndef STATCOLLECT_SERVER_CONTROL_CONTROL_H_
#define STATCOLLECT_SERVER_CONTROL_CONTROL_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/capture_spec.h"
#include "common/status.h"

namespace statcollect {

// State of retention (docs/metrics.md), as of its last check.
struct RetentionStatus {
  std::int64_t age_seconds_max = 0;  // 0: no limit
  std::uint64_t disk_bytes_max = 0;  // 0: no limit
  std::string note;  // why it removes less than the limits require; empty if it does not
  std::uint64_t runs_removed = 0;   // since start
  std::uint64_t bytes_removed = 0;  // approximate, since start
  struct Next {
    std::string run;
    std::int64_t last_write_unix_nanos = 0;
    std::uint64_t bytes = 0;          // approximate
    std::int64_t due_unix_nanos = 0;  // by age; 0: only when space runs low
  };
  std::vector<Next> next;         // the first few, in the order of removal
  std::vector<std::string> kept;  // runs that are exempt
};

// State of the alarms (docs/alarms.md).
struct AlarmStatus {
  bool enabled = false;
  std::map<std::string, std::uint64_t> raised;  // since start, by rule; contains every rule
  std::map<std::string, std::uint64_t> active;  // currently, in runs whose state is in memory
  std::uint64_t evaluated_records = 0;          // records of statistics, since start
  std::uint64_t skipped_records = 0;            // skipped because the evaluation could not keep up
  std::uint64_t state_bytes = 0;
  std::uint64_t webhook_sent = 0, webhook_failed = 0, webhook_dropped = 0;  // messages, since start
  std::string webhook;  // its address; empty: none
};

// Who was kept out, and slowed down, since start.
struct AccessStatus {
  bool on = false;  // every call needs a token or a certificate
  std::uint64_t unauthenticated = 0, permission_denied = 0;  // calls
  std::uint64_t streams_refused = 0;                         // over a caller's limit
  std::uint64_t throttled_millis = 0;  // that streams waited for a limit of bytes a second
  std::uint64_t audit_lost = 0;        // lines that the audit log could not write
  std::uint64_t quota_refused = 0;     // streams and batches of projects over their limit of disk
};

// What the runs of a project take, and may take; as of a few seconds ago.
struct ProjectDisk {
  std::uint64_t bytes = 0, bytes_max = 0;  // 0: no limit
};

struct CollectorStatus {
  std::string version;
  std::int64_t pid = 0;
  std::int64_t start_unix_nanos = 0;
  std::int64_t uptime_seconds = 0;
  std::string data_dir;
  bool fsync = true;
  std::string state;  // "ready", "read_only: <why>", "draining"
  std::uint64_t runs = 0;
  std::uint32_t streams_open = 0;
  // Since start:
  std::uint64_t streams_total = 0;
  std::uint64_t batches_total = 0;
  std::uint64_t records_total = 0;  // durable
  std::uint64_t bytes_total = 0;    // of accepted batches
  std::uint64_t duplicate_records_total = 0;
  std::uint64_t rejected_batches_total = 0;
  std::uint64_t commits_total = 0;
  std::uint64_t disk_bytes = 0;
  std::optional<std::uint64_t> disk_free_bytes;  // none: unknown
  std::uint64_t agents_dropped_total = 0;        // reported by agents
  // Reported by agents, by cause, over all stored runs:
  std::map<std::string, std::uint64_t> dropped_by_cause;
  // Received and not yet durable:
  std::uint64_t backlog_records = 0;
  std::uint64_t backlog_bytes = 0;
  std::int64_t backlog_oldest_millis = 0;  // age of the oldest of them
  RetentionStatus retention;
  AlarmStatus alarms;
  AccessStatus access;
  std::uint64_t projects_full = 0;                  // over their limit of disk
  std::map<std::string, ProjectDisk> project_disk;  // if there are limits
  std::string http_address;                         // "127.0.0.1:7434"; empty: off
  std::string grpc_address;  // "127.0.0.1:7433" or "unix:/run/statcollect.sock"
  bool ready() const { return state == "ready"; }
};

struct DeletedRun {
  std::uint64_t records = 0;
  std::uint32_t attempts = 0;
};

struct MadeCheckpoint {
  std::string directory;  // the resolved path
  std::uint64_t files = 0;
  std::uint64_t bytes = 0;
  bool linked = false;  // shares the disk space of its tables with the store
};

// An accepted capture request.
struct RequestedCapture {
  std::uint64_t request = 0;         // its number within the run
  std::vector<std::uint32_t> ranks;  // the ranks that were asked
  std::uint32_t told = 0;            // of these: with an open stream
};

// Thread-safe.
class CollectorControl {
 public:
  virtual ~CollectorControl() = default;
  virtual CollectorStatus GetStatus() = 0;
  // Removes the run. kNotFound; kFailedPrecondition while a stream of the run is open, unless
  // `force`, which closes the streams first.
  virtual Result<DeletedRun> DeleteRun(const std::string& run, bool force) = 0;
  // Exempts a run from retention, or ends the exemption. kNotFound.
  virtual Status KeepRun(const std::string& run, bool keep) = 0;
  // Asks the run's open streams to record tensors in these steps only, and remembers it for ranks
  // that connect later. Returns the number of streams asked. kNotFound; kInvalidArgument: the steps
  // do not parse; kFailedPrecondition: no stream of the run is open.
  virtual Result<std::uint32_t> RecordSteps(const std::string& run, const std::string& steps) = 0;
  // Asks ranks of the run's newest launch (none: all) to keep the raw values of an activation in a
  // future step. The request is durable: ranks that connect later are asked, too. kNotFound: no
  // such run or rank; kFailedPrecondition: no stream of the run is open or may reopen soon;
  // kOutOfRange: the step has passed on all of them.
  virtual Result<RequestedCapture> RequestCapture(const std::string& run,
                                                  const std::vector<std::uint32_t>& ranks,
                                                  const CaptureSpec& spec) = 0;
  // Writes a consistent copy of the store with everything acknowledged before the call. Has no time
  // limit.
  virtual Result<MadeCheckpoint> Checkpoint(const std::string& directory) = 0;
  // Whether a stream of the rank is open. `attempt` is the store's attempt id.
  virtual bool IsStreamOpen(std::uint32_t attempt, std::uint32_t rank) = 0;
};

}  // namespace statcollect

#endif  // STATCOLLECT_SERVER_CONTROL_CONTROL_H_
