// A few threads that run queries, a short queue of waiting ones, and one thread that watches their
// time limits.
#ifndef STATCOLLECT_SERVER_API_WORKER_POOL_H_
#define STATCOLLECT_SERVER_API_WORKER_POOL_H_

#include <atomic>
#include <chrono>
#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <set>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "common/status.h"
#include "common/thread_annotations.h"

namespace statcollect::api {

// One piece of work. It ends exactly once: by `work`, or, if it never started, by `abandon` with
// the reason. Both run on a thread of the pool, or on the one that calls Cancel or the pool's
// destructor, never inside Submit. The pool owns submitted items; code that may cancel one keeps a
// weak_ptr, so that the functions may own their caller.
class WorkItem {
 public:
  WorkItem(std::function<void(const WorkItem&)> work, std::function<void(const Status&)> abandon)
      : work_(std::move(work)), abandon_(std::move(abandon)) {}

  // The work checks this while it runs.
  std::stop_token stop() const { return stop_.get_token(); }
  bool timed_out() const { return timed_out_; }

 private:
  friend class WorkerPool;
  std::function<void(const WorkItem&)> work_;
  std::function<void(const Status&)> abandon_;
  std::stop_source stop_;
  std::atomic<bool> timed_out_ = false;
  std::chrono::steady_clock::time_point deadline_;
};

struct WorkerPoolOptions {
  std::string what = "query";  // for messages
  std::size_t threads = 1;
  std::size_t waiting_max = 16;
  std::chrono::milliseconds time_limit{0};  // of an item, including its wait; 0: none
};

// Invariants: at most `threads` items run, at most `waiting_max` wait. Thread-safe.
class WorkerPool {
 public:
  explicit WorkerPool(WorkerPoolOptions options);
  // Cancels everything and waits for running items.
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  // kResourceExhausted if too many items wait; the item is then dropped without calling either
  // function.
  Status Submit(std::shared_ptr<WorkItem> item);
  // Asks a running item to stop; a waiting one is abandoned at once and frees its place. No effect
  // on an item that has ended.
  void Cancel(const std::shared_ptr<WorkItem>& item);
  std::string TimeLimitMessage() const;

 private:
  void Work();
  void Watch();
  // Stops running items that are past their deadline. Removes waiting ones from the queue and
  // returns them, to be abandoned without the lock.
  std::vector<std::shared_ptr<WorkItem>> ExpireLocked(std::chrono::steady_clock::time_point now)
      STATCOLLECT_REQUIRES(mutex_);
  std::chrono::steady_clock::time_point NextDeadlineLocked() const STATCOLLECT_REQUIRES(mutex_);

  const WorkerPoolOptions options_;
  Mutex mutex_;  // guards everything below
  ConditionVariable work_available_, watch_changed_;
  std::deque<std::shared_ptr<WorkItem>> waiting_ STATCOLLECT_GUARDED_BY(mutex_);
  std::set<std::shared_ptr<WorkItem>> running_ STATCOLLECT_GUARDED_BY(mutex_);
  bool closing_ STATCOLLECT_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
  std::thread watcher_;
};

}  // namespace statcollect::api

#endif  // STATCOLLECT_SERVER_API_WORKER_POOL_H_
