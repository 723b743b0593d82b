// Removes old runs: those whose last write is older than a limit, and the oldest ones while the
// store is larger than a limit. It removes only whole runs, never one that is exempt (statctl pin)
// or has an open stream, and an unfinished one only after an hour of silence.
//
// Ages use the wall clock, which may be wrong. If it has moved against the monotonic clock by more
// than kClockJump, or is more than kClockHold ahead of the newest write at the start, nothing is
// removed by age for kClockHold, which leaves time to see the note in the status and to correct the
// clock.
//
// Threads: Tick from one, status from any.
#ifndef STATCOLLECT_SERVER_INGEST_RETENTION_H_
#define STATCOLLECT_SERVER_INGEST_RETENTION_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/thread_annotations.h"
#include "server/control/control.h"
#include "server/ingest/registry.h"
#include "server/store/store.h"

namespace statcollect {

struct RetentionOptions {
  std::chrono::seconds age_max{0};   // since a run's last write; 0: no limit
  std::uint64_t disk_bytes_max = 0;  // of the store; 0: no limit
  unsigned disk_percent_max = 0;     // the store's share of its file system's capacity; 0: no limit
  std::chrono::seconds interval{60};  // between two checks
  std::size_t next_max = 5;           // entries of the plan in status()
  bool enabled() const { return age_max.count() > 0 || disk_bytes_max > 0 || disk_percent_max > 0; }
};

class Retention {
 public:
  static constexpr std::chrono::hours kUnfinishedIdle{1};
  static constexpr std::chrono::minutes kClockJump{10};
  static constexpr std::chrono::hours kClockHold{24};
  // After a removal because of measured use alone: RocksDB frees space only when it compacts.
  static constexpr std::chrono::minutes kSettle{10};
  // The write-ahead log and the temporary space of compactions come on top of the limit.
  static constexpr std::uint64_t kOverheadBytesMax = std::uint64_t{256} << 20;

  // `log` gets a line for each removal and each reason not to remove.
  Retention(Store& store, const Clock& clock, SessionRegistry& registry,
            const RetentionOptions& options, std::function<void(const std::string& line)> log);

  // Checks and removes, if it is time.
  void Tick();
  // As of the last check.
  RetentionStatus status();

 private:
  using TimePoint = std::chrono::steady_clock::time_point;
  // A run with all its attempts.
  struct Run {
    std::string name;
    std::uint64_t bytes = 0, records = 0;
    std::int64_t last_write_unix_nanos = 0;
    bool finished = true, kept = false;
  };
  using Runs = std::vector<Run>;  // by last write, oldest first

  static Runs ByRun(const std::vector<AttemptTally>& tallies);
  void WatchClock(const Runs& runs);
  void RemoveExpired(Runs* runs);
  void RemoveForSpace(Runs* runs, const StoreUsage& usage);
  bool MayRemove(const Run& run);
  // False if it could not be removed.
  bool Remove(const Run& run, const std::string& why);
  // Removes the oldest run that may be removed; false if there is none.
  bool RemoveOldest(Runs* runs, const std::string& why);
  void Publish(const Runs& runs);
  std::uint64_t LimitBytes(const StoreUsage& usage) const;
  bool held() const { return hold_until_ && now_ < *hold_until_; }
  void Note(const std::string& note);

  Store& store_;
  const Clock& clock_;
  SessionRegistry& registry_;
  const RetentionOptions options_;
  const std::function<void(const std::string&)> log_;

  // Of the current check.
  TimePoint now_;
  std::int64_t wall_ = 0;
  std::string note_;

  std::optional<TimePoint> last_look_;
  std::int64_t last_wall_ = 0;
  std::optional<TimePoint> hold_until_, last_space_removal_;
  std::string hold_reason_, noted_;

  Mutex mutex_;
  RetentionStatus status_ STATCOLLECT_GUARDED_BY(mutex_);
};

}  // namespace statcollect

#endif  // STATCOLLECT_SERVER_INGEST_RETENTION_H_
