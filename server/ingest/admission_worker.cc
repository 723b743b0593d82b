#include "server/ingest/admission_worker.h"

#include <utility>

namespace statcollect {

AdmissionWorker::AdmissionWorker(std::chrono::milliseconds interval, std::function<void()> tick)
    : interval_(interval), tick_(std::move(tick)), thread_([this] { Run(); }) {}

AdmissionWorker::~AdmissionWorker() { Stop(); }

void AdmissionWorker::Post(std::function<void()> job) {
  MutexLock lock(mutex_);
  if (stopping_) return;
  jobs_.push_back(std::move(job));
  changed_.notify_one();
}

void AdmissionWorker::Stop() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    changed_.notify_one();
  }
  MutexLock lock(join_mutex_);
  if (thread_.joinable()) thread_.join();
}

void AdmissionWorker::Run() {
  auto next_tick = std::chrono::steady_clock::now() + interval_;
  MutexLock lock(mutex_);
  for (;;) {
    changed_.wait_until(mutex_, next_tick,
                        [this]() STATCOLLECT_REQUIRES(mutex_) { return stopping_ || !jobs_.empty(); });
    if (!jobs_.empty()) {
      auto job = std::move(jobs_.front());
      jobs_.pop_front();
      lock.unlock();
      job();
      job = nullptr;
      lock.lock();
    } else if (stopping_) {
      return;
    }
    if (std::chrono::steady_clock::now() < next_tick) continue;
    next_tick = std::chrono::steady_clock::now() + interval_;
    lock.unlock();
    tick_();
    lock.lock();
  }
}

}  // namespace statcollect
