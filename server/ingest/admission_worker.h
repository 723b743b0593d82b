// Threads for rare work that may block: admitting hellos (catalogue writes) and checking deadlines.
// They keep both off gRPC's threads.
//
// Jobs with the same key run one after another, in the order of Post; others do not wait for them
// while a thread is free.
#ifndef STATCOLLECT_SERVER_INGEST_ADMISSION_WORKER_H_
#define STATCOLLECT_SERVER_INGEST_ADMISSION_WORKER_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "common/thread_annotations.h"

namespace statcollect {

// Of the hellos of one rank.
inline std::size_t AdmissionKey(const std::string& run, std::uint32_t rank) {
  return std::hash<std::string>()(run) * 31 + rank;
}

class AdmissionWorker {
 public:
  // Calls `tick` about every `interval`, on one of the threads, never twice at the same time.
  AdmissionWorker(std::chrono::milliseconds interval, std::function<void()> tick,
                  std::size_t threads = 1);
  ~AdmissionWorker();  // calls Stop
  AdmissionWorker(const AdmissionWorker&) = delete;
  AdmissionWorker& operator=(const AdmissionWorker&) = delete;

  void Post(std::size_t key, std::function<void()> job);  // dropped without running after Stop
  // Runs the jobs posted so far, then ends the threads. Idempotent.
  void Stop();

 private:
  using TimePoint = std::chrono::steady_clock::time_point;
  struct Job {
    std::size_t key;
    std::function<void()> run;
  };

  void Run();
  // The first job whose key no thread is busy with; jobs_.end(): none.
  std::deque<Job>::iterator NextLocked() STATCOLLECT_REQUIRES(mutex_);

  const std::chrono::milliseconds interval_;
  const std::function<void()> tick_;
  Mutex mutex_;
  ConditionVariable changed_;
  std::deque<Job> jobs_ STATCOLLECT_GUARDED_BY(mutex_);
  std::set<std::size_t> busy_ STATCOLLECT_GUARDED_BY(mutex_);  // keys of running jobs
  TimePoint next_tick_ STATCOLLECT_GUARDED_BY(mutex_);
  bool ticking_ STATCOLLECT_GUARDED_BY(mutex_) = false;
  bool stopping_ STATCOLLECT_GUARDED_BY(mutex_) = false;
  Mutex join_mutex_;
  std::vector<std::thread> threads_;
};

}  // namespace statcollect

#endif  // STATCOLLECT_SERVER_INGEST_ADMISSION_WORKER_H_
