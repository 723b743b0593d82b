// One thread for rare work that may block: admitting hellos (catalogue writes) and checking deadlines. It
// keeps both off gRPC's threads.
#ifndef STATCOLLECT_SERVER_INGEST_ADMISSION_WORKER_H_
#define STATCOLLECT_SERVER_INGEST_ADMISSION_WORKER_H_

#include <chrono>
#include <deque>
#include <functional>
#include <thread>

#include "common/thread_annotations.h"

namespace statcollect {

class AdmissionWorker {
 public:
  // Calls `tick` about every `interval`, on the worker's thread.
  AdmissionWorker(std::chrono::milliseconds interval, std::function<void()> tick);
  ~AdmissionWorker();  // calls Stop
  AdmissionWorker(const AdmissionWorker&) = delete;
  AdmissionWorker& operator=(const AdmissionWorker&) = delete;

  void Post(std::function<void()> job);  // dropped without running after Stop
  // Runs the jobs posted so far, then ends the thread. Idempotent.
  void Stop();

 private:
  void Run();

  const std::chrono::milliseconds interval_;
  const std::function<void()> tick_;
  Mutex mutex_;
  ConditionVariable changed_;
  std::deque<std::function<void()>> jobs_ STATCOLLECT_GUARDED_BY(mutex_);
  bool stopping_ STATCOLLECT_GUARDED_BY(mutex_) = false;
  Mutex join_mutex_;
  std::thread thread_;
};

}  // namespace statcollect

#endif  // STATCOLLECT_SERVER_INGEST_ADMISSION_WORKER_H_
