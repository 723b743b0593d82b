// A few threads that share the reduction of large tensors with the thread that observes them.
#ifndef STATCOLLECT_AGENT_STATS_CPU_WORKERS_H_
#define STATCOLLECT_AGENT_STATS_CPU_WORKERS_H_

#include <atomic>
#include <cstddef>
#include <thread>
#include <vector>

#include "common/thread_annotations.h"

namespace statcollect::stats {

// Threads start at the first Run with more than one part, sleep between runs, and leave signals to
// the program (signals_blocked.h). One run at a time: a second caller meanwhile does its parts
// alone. Threads: any.
class CpuWorkers {
 public:
  // `threads`, the caller's included; 1 or less: nothing is ever started.
  explicit CpuWorkers(int threads) : threads_(threads) {}
  ~CpuWorkers();
  CpuWorkers(const CpuWorkers&) = delete;
  CpuWorkers& operator=(const CpuWorkers&) = delete;

  int threads() const { return threads_; }

  // Calls work(part) once for each part in [0, parts), in any order, and returns when all are done.
  template <typename Work>
  void Run(std::size_t parts, const Work& work) noexcept {
    RunErased(
        parts, [](const void* of, std::size_t part) { (*static_cast<const Work*>(of))(part); },
        &work);
  }

 private:
  using Function = void (*)(const void* work, std::size_t part);

  void RunErased(std::size_t parts, Function function, const void* work) noexcept;
  void RunTogether(std::size_t parts, Function function, const void* work) noexcept
      STATCOLLECT_REQUIRES(caller_);
  void StartLocked() noexcept STATCOLLECT_REQUIRES(mutex_);
  void TakeParts(std::size_t parts, Function function, const void* work) noexcept;
  void Serve() noexcept;

  const int threads_;
  Mutex caller_;  // held by the one that runs
  std::atomic<std::size_t> next_part_{0};

  Mutex mutex_;  // guards the rest
  ConditionVariable job_changed_, idle_changed_;
  std::vector<std::thread> workers_;
  std::size_t job_ STATCOLLECT_GUARDED_BY(mutex_) =
      0;  // number of the run; workers take part once in each
  std::size_t busy_ STATCOLLECT_GUARDED_BY(mutex_) = 0;
  std::size_t parts_ STATCOLLECT_GUARDED_BY(mutex_) = 0;
  Function function_ STATCOLLECT_GUARDED_BY(mutex_) = nullptr;  // null between runs
  const void* work_ STATCOLLECT_GUARDED_BY(mutex_) = nullptr;
  bool started_ STATCOLLECT_GUARDED_BY(mutex_) = false, stop_
                                                        STATCOLLECT_GUARDED_BY(mutex_) = false;
};

}  // namespace statcollect::stats

#endif  // STATCOLLECT_AGENT_STATS_CPU_WORKERS_H_
