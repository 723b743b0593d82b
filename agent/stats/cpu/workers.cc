#include "agent/stats/cpu/workers.h"

#include <exception>

#include "common/signals_blocked.h"

namespace statcollect::stats {

CpuWorkers::~CpuWorkers() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  job_changed_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void CpuWorkers::RunErased(std::size_t parts, Function function, const void* work) noexcept {
  std::unique_lock caller(caller_, std::try_to_lock);
  if (parts < 2 || threads_ < 2 || !caller.owns_lock()) {
    for (std::size_t part = 0; part < parts; ++part) function(work, part);
    return;
  }
  next_part_.store(0, std::memory_order_relaxed);
  {
    std::lock_guard lock(mutex_);
    if (!started_) StartLocked();
    ++job_;
    parts_ = parts;
    function_ = function;
    work_ = work;
  }
  job_changed_.notify_all();
  TakeParts(parts, function, work);
  // A worker that wakes only now finds no job.
  std::unique_lock lock(mutex_);
  function_ = nullptr;
  idle_changed_.wait(lock, [this] { return busy_ == 0; });
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
  std::unique_lock lock(mutex_);
  for (;;) {
    job_changed_.wait(lock, [&] { return stop_ || (function_ != nullptr && job_ != served); });
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
