#include "server/ingest/admission_worker.h"

#include <algorithm>
#include <utility>

namespace statcollect {

AdmissionWorker::AdmissionWorker(std::chrono::milliseconds interval, std::function<void()> tick,
                                 std::size_t threads)
    : interval_(interval),
      tick_(std::move(tick)),
      next_tick_(std::chrono::steady_clock::now() + interval_) {
  for (std::size_t i = 0; i < threads; ++i) threads_.emplace_back([this] { Run(); });
}

AdmissionWorker::~AdmissionWorker() { Stop(); }

void AdmissionWorker::Post(std::size_t key, std::function<void()> job) {
  MutexLock lock(mutex_);
  if (stopping_) return;
  jobs_.push_back({.key = key, .run = std::move(job)});
  changed_.notify_one();
}

void AdmissionWorker::Stop() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
  }
  MutexLock lock(join_mutex_);
  for (std::thread& thread : threads_) {
    if (thread.joinable()) thread.join();
  }
}

std::deque<AdmissionWorker::Job>::iterator AdmissionWorker::NextLocked() {
  auto next = jobs_.begin();
  while (next != jobs_.end() && busy_.contains(next->key)) ++next;
  return next;
}

void AdmissionWorker::Run() {
  MutexLock lock(mutex_);
  for (;;) {
    const auto now = std::chrono::steady_clock::now();
    const auto next = NextLocked();
    if (next != jobs_.end()) {
      Job job = std::move(*next);
      jobs_.erase(next);
      busy_.insert(job.key);
      lock.unlock();
      job.run();
      job.run = nullptr;
      lock.lock();
      busy_.erase(job.key);
      // This thread takes one of the jobs that may run now, which are at most one more than before.
      if (stopping_)
        changed_.notify_all();
      else
        changed_.notify_one();
    } else if (stopping_ && jobs_.empty()) {
      return;
    }
    if (!ticking_ && now >= next_tick_) {
      ticking_ = true;
      next_tick_ = now + interval_;
      lock.unlock();
      tick_();
      lock.lock();
      ticking_ = false;
    }
    changed_.wait_until(mutex_, ticking_ ? now + interval_ : next_tick_,
                        [this]() STATCOLLECT_REQUIRES(mutex_) {
                          return (stopping_ && jobs_.empty()) || NextLocked() != jobs_.end();
                        });
  }
}

}  // namespace statcollect
