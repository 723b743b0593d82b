// Which runs have changed since somebody looked. While nobody does, a change costs one look at a
// flag.
#ifndef STATCOLLECT_SERVER_CONTROL_RUN_FEED_H_
#define STATCOLLECT_SERVER_CONTROL_RUN_FEED_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "common/thread_annotations.h"

namespace statcollect {

// Thread-safe. The watcher is called with the feed's mutex held: it must not block or call the
// feed.
class RunFeed {
 public:
  // Runs with anything new, and how many events each of them has got since the watch began.
  struct Changes {
    std::set<std::string> runs;
    std::map<std::string, std::uint64_t> events;
    bool closed = false;  // nothing more will change
  };

  // From now on, `wake` is called when there is something to take. An empty one ends the watch.
  void Watch(std::function<void()> wake) {
    MutexLock lock(mutex_);
    wake_ = std::move(wake);
    watched_ = wake_ != nullptr;
    changed_.clear();
    events_.clear();
    if (closed_ && wake_) wake_();
  }
  // The run has more records, an opened or closed stream, or is gone.
  void Changed(const std::string& run) {
    if (!watched_.load(std::memory_order_relaxed)) return;
    MutexLock lock(mutex_);
    AddLocked(run);
  }
  // The run has a new event. Every event is also a change.
  void Evented(const std::string& run) {
    if (!watched_.load(std::memory_order_relaxed)) return;
    MutexLock lock(mutex_);
    if (!wake_) return;
    ++events_[run];
    AddLocked(run);
  }
  // What has changed since it was last taken; the counts of events are those since the watch began.
  Changes Take() {
    MutexLock lock(mutex_);
    Changes changes{.runs = std::exchange(changed_, {}), .events = {}, .closed = closed_};
    for (const std::string& run : changes.runs) {
      const auto count = events_.find(run);
      if (count != events_.end()) changes.events.insert(*count);
    }
    return changes;
  }
  // Idempotent.
  void Close() {
    MutexLock lock(mutex_);
    closed_ = true;
    if (wake_) wake_();
  }

 private:
  void AddLocked(const std::string& run) STATCOLLECT_REQUIRES(mutex_) {
    if (!wake_) return;
    const bool first = changed_.empty();
    changed_.insert(run);
    if (first) wake_();
  }

  std::atomic<bool> watched_{false};
  Mutex mutex_;
  bool closed_ STATCOLLECT_GUARDED_BY(mutex_) = false;
  std::function<void()> wake_ STATCOLLECT_GUARDED_BY(mutex_);
  std::set<std::string> changed_ STATCOLLECT_GUARDED_BY(mutex_);
  std::map<std::string, std::uint64_t> events_ STATCOLLECT_GUARDED_BY(mutex_);
};

}  // namespace statcollect

#endif  // STATCOLLECT_SERVER_CONTROL_RUN_FEED_H_
