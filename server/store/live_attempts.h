// The existing attempts, for code that holds ids of attempts that may have been removed. Thread-safe.
#ifndef STATCOLLECT_SERVER_STORE_LIVE_ATTEMPTS_H_
#define STATCOLLECT_SERVER_STORE_LIVE_ATTEMPTS_H_

#include <algorithm>
#include <mutex>
#include <set>

#include "server/store/store.h"

namespace statcollect {

// Ids only grow, so an id below the next one that is missing was removed.
class LiveAttempts {
 public:
  struct Snapshot {
    std::set<AttemptId> live;
    AttemptId next = 1;
    bool IsDead(AttemptId id) const { return id < next && !live.contains(id); }
  };
  void Add(AttemptId id) {
    std::lock_guard lock(mutex_);
    known_.live.insert(id);
    known_.next = std::max(known_.next, id + 1);
  }
  void SetNext(AttemptId next) {
    std::lock_guard lock(mutex_);
    known_.next = std::max(known_.next, next);
  }
  void Remove(AttemptId id) {
    std::lock_guard lock(mutex_);
    known_.live.erase(id);
  }
  bool Contains(AttemptId id) const {
    std::lock_guard lock(mutex_);
    return known_.live.contains(id);
  }
  Snapshot snapshot() const {
    std::lock_guard lock(mutex_);
    return known_;
  }

 private:
  mutable std::mutex mutex_;
  Snapshot known_;
};

}  // namespace statcollect

#endif  // STATCOLLECT_SERVER_STORE_LIVE_ATTEMPTS_H_
