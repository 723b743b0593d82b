#include "server/ingest/memory_gate.h"

namespace statcollect {

void MemoryGate::Share::Resize(std::size_t bytes) {
  if (gate_ == nullptr) return;
  gate_->Change(bytes_, bytes);
  bytes_ = bytes;
}

MemoryGate::MemoryGate(std::size_t bytes_max, std::size_t threads) : bytes_max_(bytes_max) {
  for (std::size_t i = 0; i < threads; ++i) threads_.emplace_back([this] { Run(); });
}

MemoryGate::~MemoryGate() { Stop(); }

void MemoryGate::Enter(std::size_t bytes, Job job) {
  {
    MutexLock lock(mutex_);
    if (stopping_) return;
    if (!waiting_.empty() || !HasRoomLocked(bytes)) {
      waiting_.push_back({bytes, std::move(job)});
      return;
    }
    bytes_ += bytes;
  }
  job(Share(this, bytes));
}

void MemoryGate::Stop() {
  std::deque<Waiting> dropped;  // released without the lock
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    dropped.swap(waiting_);
    changed_.notify_all();
  }
  MutexLock lock(join_mutex_);
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

std::size_t MemoryGate::bytes() {
  MutexLock lock(mutex_);
  return bytes_;
}

std::size_t MemoryGate::waiting() {
  MutexLock lock(mutex_);
  return waiting_.size();
}

bool MemoryGate::HasRoomLocked(std::size_t bytes) const {
  return bytes_ == 0 || bytes_ + bytes <= bytes_max_;
}

void MemoryGate::Change(std::size_t from, std::size_t to) {
  MutexLock lock(mutex_);
  bytes_ = bytes_ - from + to;
  if (to < from && !waiting_.empty()) changed_.notify_all();
}

void MemoryGate::Run() {
  MutexLock lock(mutex_);
  for (;;) {
    changed_.wait(mutex_, [this]() STATCOLLECT_REQUIRES(mutex_) {
      return stopping_ || (!waiting_.empty() && HasRoomLocked(waiting_.front().bytes));
    });
    if (stopping_) return;
    Waiting next = std::move(waiting_.front());
    waiting_.pop_front();
    bytes_ += next.bytes;
    lock.unlock();
    next.job(Share(this, next.bytes));
    next.job = nullptr;
    lock.lock();
  }
}

}  // namespace statcollect
