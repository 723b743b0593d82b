// The existing attempts, for code that holds ids of attempts that may have been removed.
// Thread-safe.
#ifndef STATCOLLECT_SERVER_STORE_LIVE_ATTEMPTS_H_
#define STATCOLLECT_SERVER_STORE_LIVE_ATTEMPTS_H_

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <string_view>

#include "common/project.h"
#include "server/store/attempt.h"

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
  // `run`: with its project.
  void Add(AttemptId id, std::string_view run) {
    MutexLock lock(mutex_);
    if (const std::string_view project = SplitRun(run).project; project != kDefaultProject)
      projects_.emplace(id, project);
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
    projects_.erase(id);
  }
  bool Contains(AttemptId id) const {
    MutexLock lock(mutex_);
    return known_.live.contains(id);
  }
  // Whether it exists and belongs to the project of `other`.
  bool IsInProjectOf(AttemptId other, AttemptId id) const {
    MutexLock lock(mutex_);
    return known_.live.contains(id) && ProjectOfLocked(id) == ProjectOfLocked(other);
  }
  // Empty: the default one.
  std::string ProjectOf(AttemptId id) const {
    MutexLock lock(mutex_);
    return std::string(ProjectOfLocked(id));
  }
  Snapshot snapshot() const {
    MutexLock lock(mutex_);
    return known_;
  }

 private:
  std::string_view ProjectOfLocked(AttemptId id) const STATCOLLECT_REQUIRES(mutex_) {
    const auto found = projects_.find(id);
    return found == projects_.end() ? std::string_view() : found->second;
  }

  mutable Mutex mutex_;
  Snapshot known_ STATCOLLECT_GUARDED_BY(mutex_);
  std::map<AttemptId, std::string> projects_
      STATCOLLECT_GUARDED_BY(mutex_);  // other than the default one
};

}  // namespace statcollect

#endif  // STATCOLLECT_SERVER_STORE_LIVE_ATTEMPTS_H_
