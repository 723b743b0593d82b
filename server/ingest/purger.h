// Deletes the data of removed attempts, on a thread of its own: that may take minutes, and nobody
// waits for it.
#ifndef STATCOLLECT_SERVER_INGEST_PURGER_H_
#define STATCOLLECT_SERVER_INGEST_PURGER_H_

#include <atomic>
#include <chrono>
#include <functional>
#include <string>
#include <thread>

#include "common/thread_annotations.h"
#include "server/store/store.h"

namespace statcollect {

// Threads: any may call.
class Purger {
 public:
  // After a failure it tries again after this time, and when it is woken.
  static constexpr std::chrono::seconds kRetry{10};

  // Starts with what an earlier process left. `log` gets a line for each kind of failure.
  Purger(Store& store, std::function<void(const std::string& line)> log,
         std::chrono::milliseconds retry = kRetry);
  ~Purger();  // calls Stop
  Purger(const Purger&) = delete;
  Purger& operator=(const Purger&) = delete;

  // Attempts have been retired. Does not wait.
  void Wake();
  // Ends a purge under way; the next start continues it. Does not wait.
  void RequestStop();
  // RequestStop, and waits until the thread has ended: for the rest of a block and a write.
  // Idempotent.
  void Stop();

 private:
  void Run();
  void Report(const Status& status);

  Store& store_;
  const std::function<void(const std::string&)> log_;
  const std::chrono::milliseconds retry_;
  std::string reported_;  // the last failure; the thread's own
  Mutex mutex_;
  ConditionVariable changed_;
  bool wanted_ STATCOLLECT_GUARDED_BY(mutex_) = true;
  std::atomic<bool> stopping_{false};  // set under mutex_
  Mutex join_mutex_;
  std::thread thread_;
};

}  // namespace statcollect

#endif  // STATCOLLECT_SERVER_INGEST_PURGER_H_
