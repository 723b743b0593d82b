#include "server/ingest/purger.h"

#include <utility>

namespace statcollect {

Purger::Purger(Store& store, std::function<void(const std::string& line)> log,
               std::chrono::milliseconds retry)
    : store_(store), log_(std::move(log)), retry_(retry), thread_([this] { Run(); }) {}

Purger::~Purger() { Stop(); }

void Purger::Wake() {
  MutexLock lock(mutex_);
  wanted_ = true;
  changed_.notify_one();
}

void Purger::RequestStop() {
  MutexLock lock(mutex_);
  stopping_ = true;
  changed_.notify_one();
}

void Purger::Stop() {
  RequestStop();
  MutexLock lock(join_mutex_);
  if (thread_.joinable()) thread_.join();
}

void Purger::Run() {
  bool failed = false;
  MutexLock lock(mutex_);
  for (;;) {
    const auto is_due = [this]() STATCOLLECT_REQUIRES(mutex_) { return wanted_ || stopping_; };
    if (failed)
      (void)changed_.wait_until(mutex_, std::chrono::steady_clock::now() + retry_, is_due);
    else
      changed_.wait(mutex_, is_due);
    if (stopping_) return;
    wanted_ = false;
    lock.unlock();
    const Status purged =
        store_.PurgeRetired([this] { return stopping_.load(std::memory_order_relaxed); });
    failed = !purged.ok();
    if (!stopping_) Report(purged);
    lock.lock();
  }
}

// A failure that repeats is told once.
void Purger::Report(const Status& status) {
  const std::string found = status.ok() ? "" : status.message();
  if (found != reported_ && !status.ok())
    log_("delete the data of removed runs: " + found + "; tried again every " +
         std::to_string(std::chrono::duration_cast<std::chrono::seconds>(retry_).count()) + " s");
  reported_ = found;
}

}  // namespace statcollect
