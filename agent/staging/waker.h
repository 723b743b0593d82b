// Wakes one waiting thread. A wake that comes before the wait is not lost.
#ifndef STATCOLLECT_AGENT_STAGING_WAKER_H_
#define STATCOLLECT_AGENT_STAGING_WAKER_H_

#include <chrono>

#include "common/thread_annotations.h"

namespace statcollect {

class Waker {
 public:
  void Wake() {
    {
      MutexLock lock(mutex_);
      woken_ = true;
    }
    changed_.notify_one();
  }

  // Returns at the deadline, or as soon as Wake was called since the last wait returned.
  void WaitUntil(std::chrono::steady_clock::time_point deadline) {
    MutexLock lock(mutex_);
    if (deadline == std::chrono::steady_clock::time_point::max()) {
      changed_.wait(mutex_, [this]() STATCOLLECT_REQUIRES(mutex_) { return woken_; });
    } else {
      changed_.wait_until(mutex_, deadline,
                          [this]() STATCOLLECT_REQUIRES(mutex_) { return woken_; });
    }
    woken_ = false;
  }

 private:
  Mutex mutex_;
  ConditionVariable changed_;
  bool woken_ STATCOLLECT_GUARDED_BY(mutex_) = false;
};

}  // namespace statcollect

#endif  // STATCOLLECT_AGENT_STAGING_WAKER_H_
