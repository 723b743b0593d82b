#include "server/api/worker_pool.h"

#include <algorithm>
#include <utility>

namespace statcollect::api {
namespace {

using TimePoint = std::chrono::steady_clock::time_point;

Status Cancelled(const std::string& what) {
  return {Code::kCancelled, what + ": cancelled before it began"};
}

}  // namespace

WorkerPool::WorkerPool(WorkerPoolOptions options) : options_(std::move(options)) {
  for (std::size_t i = 0; i < std::max<std::size_t>(options_.threads, 1); ++i) {
    threads_.emplace_back([this] { Work(); });
  }
  if (options_.time_limit.count() > 0) watcher_ = std::thread([this] { Watch(); });
}

WorkerPool::~WorkerPool() {
  std::deque<std::shared_ptr<WorkItem>> waiting;
  {
    MutexLock lock(mutex_);
    closing_ = true;
    waiting.swap(waiting_);
    for (const auto& item : running_) item->stop_.request_stop();
  }
  work_available_.notify_all();
  watch_changed_.notify_all();
  for (const auto& item : waiting)
    item->abandon_({Code::kUnavailable, options_.what + ": the collector is shutting down"});
  for (std::thread& thread : threads_) thread.join();
  if (watcher_.joinable()) watcher_.join();
}

Status WorkerPool::Submit(std::shared_ptr<WorkItem> item) {
  {
    MutexLock lock(mutex_);
    if (closing_) return {Code::kUnavailable, options_.what + ": the collector is shutting down"};
    const std::size_t idle =
        threads_.size() > running_.size() ? threads_.size() - running_.size() : 0;
    if (waiting_.size() >= options_.waiting_max + idle) {
      return {Code::kResourceExhausted,
              options_.what + ": " + std::to_string(running_.size()) + " run and " +
                  std::to_string(waiting_.size()) + " wait; expected at most " +
                  std::to_string(options_.waiting_max) + " waiting; try again in a moment"};
    }
    item->deadline_ = std::chrono::steady_clock::now() + options_.time_limit;
    waiting_.push_back(std::move(item));
  }
  work_available_.notify_one();
  watch_changed_.notify_one();
  return Status::Ok();
}

void WorkerPool::Cancel(const std::shared_ptr<WorkItem>& item) {
  item->stop_.request_stop();
  {
    MutexLock lock(mutex_);
    if (std::erase(waiting_, item) == 0) return;
  }
  item->abandon_(Cancelled(options_.what));
}

std::string WorkerPool::TimeLimitMessage() const {
  return options_.what + ": took longer than the collector's limit of " +
         std::to_string(
             std::chrono::duration_cast<std::chrono::seconds>(options_.time_limit).count()) +
         " s; narrow it with --steps or --rank";
}

void WorkerPool::Work() {
  MutexLock lock(mutex_);
  while (true) {
    work_available_.wait(
        mutex_, [this]() STATCOLLECT_REQUIRES(mutex_) { return closing_ || !waiting_.empty(); });
    if (waiting_.empty()) return;
    const std::shared_ptr<WorkItem> item = std::move(waiting_.front());
    waiting_.pop_front();
    running_.insert(item);
    lock.unlock();
    item->work_(*item);
    lock.lock();
    running_.erase(item);
  }
}

void WorkerPool::Watch() {
  MutexLock lock(mutex_);
  while (!closing_) {
    if (waiting_.empty() && running_.empty()) {
      watch_changed_.wait(mutex_);
      continue;
    }
    watch_changed_.wait_until(mutex_, NextDeadlineLocked());
    const auto expired = ExpireLocked(std::chrono::steady_clock::now());
    lock.unlock();
    for (const auto& item : expired) item->abandon_({Code::kDeadlineExceeded, TimeLimitMessage()});
    lock.lock();
  }
}

std::vector<std::shared_ptr<WorkItem>> WorkerPool::ExpireLocked(TimePoint now) {
  std::vector<std::shared_ptr<WorkItem>> expired;
  for (const auto& item : running_) {
    if (item->deadline_ > now || item->timed_out_) continue;
    item->timed_out_ = true;
    item->stop_.request_stop();
  }
  std::erase_if(waiting_, [&](const auto& item) STATCOLLECT_REQUIRES(mutex_) {
    if (item->deadline_ > now) return false;
    item->timed_out_ = true;
    expired.push_back(item);
    return true;
  });
  return expired;
}

TimePoint WorkerPool::NextDeadlineLocked() const {
  TimePoint next = TimePoint::max();
  for (const auto& item : waiting_) next = std::min(next, item->deadline_);
  for (const auto& item : running_) {
    if (!item->timed_out_) next = std::min(next, item->deadline_);
  }
  // wait_until converts to another clock: far beyond any deadline, without overflow.
  return std::min(next, std::chrono::steady_clock::now() + std::chrono::hours(1));
}

}  // namespace statcollect::api
