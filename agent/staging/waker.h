// Wakes one waiting thread. A wake that comes before the wait is not lost.
#ifndef STATCOLLECT_AGENT_STAGING_WAKER_H_
#define STATCOLLECT_AGENT_STAGING_WAKER_H_

#include <chrono>
#include <condition_variable>
#include <mutex>

namespace statcollect {

class Waker {
 public:
  void Wake() {
    {
      std::lock_guard lock(mutex_);
      woken_ = true;
    }
    changed_.notify_one();
  }

  // Returns at the deadline, or as soon as it was woken since the last wait.
  void WaitUntil(std::chrono::steady_clock::time_point deadline) {
    std::unique_lock lock(mutex_);
    if (deadline == std::chrono::steady_clock::time_point::max()) {
      changed_.wait(lock, [this] { return woken_; });
    } else {
      changed_.wait_until(lock, deadline, [this] { return woken_; });
    }
    woken_ = false;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool woken_ = false;
};

}  // namespace statcollect

#endif  // STATCOLLECT_AGENT_STAGING_WAKER_H_
