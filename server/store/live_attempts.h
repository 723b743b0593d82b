// The existing attempts, for code that holds ids of attempts that may have been removed. Thread-safe.
#ifndef STATCOLLECT_SERVER_STORE_LIVE_ATTEMPTS_H_
#define STATCOLLECT_SERVER_STORE_LIVE_ATTEMPTS_H_

#include <algorithm>
#include <set>

#include "server/store/store.h"

#include "common/thread_annotations.h"

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
    MutexLock lock(mutex_);
    known_.live.insert(id);
    known_.next = std::max(known_.next, id + 1);
  }
  void SetNext(AttemptId next) {
    MutexLock lock(mutex_);
    known_.next = std::max(known_.next, next);
  }
  void Remove(AttemptId id) {
    MutexLock lock(mutex_);
    known_.live.erase(id);
  }
  bool Contains(AttemptId id) const {
    MutexLock lock(mutex_);
    return known_.live.contains(id);
  }
  Snapshot snapshot() const {
    MutexLock lock(mutex_);
    return known_;
  }

 private:
  mutable Mutex mutex_;
  Snapshot known_ STATCOLLECT_GUARDED_BY(mutex_);
};

}  // namespace statcollect

#endif  // STATCOLLECT_SERVER_STORE_LIVE_ATTEMPTS_H_
