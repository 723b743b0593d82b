#include "agent/stats/cpu/workers.h"

#include <exception>

#include "common/signals_blocked.h"

namespace statcollect::stats {

CpuWorkers::~CpuWorkers() {
  {
    MutexLock lock(mutex_);
    stop_ = true;
  }
  job_changed_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void CpuWorkers::RunErased(std::size_t parts, Function function, const void* work) noexcept {
  if (parts > 1 && threads_ > 1 && caller_.try_lock()) {
    RunTogether(parts, function, work);
    caller_.unlock();
    return;
  }
  for (std::size_t part = 0; part < parts; ++part) function(work, part);
}

void CpuWorkers::RunTogether(std::size_t parts, Function function, const void* work) noexcept {
  next_part_.store(0, std::memory_order_relaxed);
  {
    MutexLock lock(mutex_);
    if (!started_) StartLocked();
    ++job_;
    parts_ = parts;
    function_ = function;
    work_ = work;
  }
  job_changed_.notify_all();
  TakeParts(parts, function, work);
  // A worker that wakes only now finds no job.
  MutexLock lock(mutex_);
  function_ = nullptr;
  idle_changed_.wait(mutex_, [this]() STATCOLLECT_REQUIRES(mutex_) { return busy_ == 0; });
}

// What cannot be started is done without.
void CpuWorkers::StartLocked() noexcept {
  started_ = true;
  const SignalsBlocked inherited;
  try {
    for (int i = 1; i < threads_; ++i) workers_.emplace_back([this] { Serve(); });
  } catch (const std::exception&) {
  }
}

void CpuWorkers::TakeParts(std::size_t parts, Function function, const void* work) noexcept {
  for (std::size_t part; (part = next_part_.fetch_add(1, std::memory_order_relaxed)) < parts;) {
    function(work, part);
  }
}

void CpuWorkers::Serve() noexcept {
  std::size_t served = 0;
  MutexLock lock(mutex_);
  for (;;) {
    job_changed_.wait(mutex_, [&]() STATCOLLECT_REQUIRES(mutex_) {
      return stop_ || (function_ != nullptr && job_ != served);
    });
    if (stop_) return;
    served = job_;
    ++busy_;
    const std::size_t parts = parts_;
    const Function function = function_;
    const void* const work = work_;
    lock.unlock();
    TakeParts(parts, function, work);
    lock.lock();
    if (--busy_ == 0) idle_changed_.notify_all();
  }
}

}  // namespace statcollect::stats
