// A transport without gRPC: a few threads deliver what tests send, as gRPC's executor would, and
// the contract of StreamTransport is checked on every call. Unlike system gRPC it is built with the
// sanitizer at hand, so a race in our code is seen.
#ifndef STATCOLLECT_TESTS_SERVER_INGEST_FAKE_WIRE_H_
#define STATCOLLECT_TESTS_SERVER_INGEST_FAKE_WIRE_H_

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "server/ingest/ingest_stream.h"

namespace statcollect::testing {

class ThreadPool {
 public:
  explicit ThreadPool(int threads) {
    for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { Run(); });
  }
  ~ThreadPool() { Finish(); }
  // Runs what was posted and what that posts, then ends its threads.
  void Finish() {
    {
      std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    changed_.notify_all();
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }
  void Post(std::function<void()> job) {
    std::lock_guard lock(mutex_);
    jobs_.push_back(std::move(job));
    changed_.notify_one();
  }

 private:
  void Run() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return stopping_ || !jobs_.empty(); });
      if (jobs_.empty()) return;
      auto job = std::move(jobs_.front());
      jobs_.pop_front();
      lock.unlock();
      job();
      job = nullptr;
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> jobs_;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

// One stream's wire. Thread-safe.
class FakeWire final : public StreamTransport {
 public:
  explicit FakeWire(ThreadPool& pool) : pool_(pool) {}
  void Join(std::shared_ptr<IngestStream> stream) {
    stream_ = std::move(stream);
    stream_->Start();
  }
  IngestStream& stream() { return *stream_; }

  // --- what the agent does
  void Send(v1::AgentMessage message) {
    std::lock_guard lock(mutex_);
    inbox_.push_back(std::move(message));
    DeliverLocked();
  }
  // Until released, writes do not complete.
  void HoldWrites() {
    std::lock_guard lock(mutex_);
    hold_writes_ = true;
  }
  void ReleaseWrites() {
    std::lock_guard lock(mutex_);
    hold_writes_ = false;
    if (writing_) CompleteWriteLocked();
  }
  std::vector<v1::CollectorMessage> AwaitMessages(std::size_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return sent_.size() >= count || end_; });
    return sent_;
  }
  Status AwaitEnd() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return end_.has_value(); });
    return *end_;
  }
  std::vector<v1::CollectorMessage> sent() {
    std::lock_guard lock(mutex_);
    return sent_;
  }
  bool ended() {
    std::lock_guard lock(mutex_);
    return end_.has_value();
  }
  std::string violation() {
    std::lock_guard lock(mutex_);
    return violation_;
  }

  // --- StreamTransport
  void StartRead() override {
    std::lock_guard lock(mutex_);
    Check(!end_, "read after finish");
    Check(!reading_, "two reads at once");
    reading_ = true;
    DeliverLocked();
  }
  void StartWrite(v1::CollectorMessage message) override {
    std::lock_guard lock(mutex_);
    Check(!end_, "write after finish");
    Check(!writing_, "two writes at once");
    writing_ = true;
    sent_.push_back(std::move(message));
    changed_.notify_all();
    if (!hold_writes_) CompleteWriteLocked();
  }
  void Finish(const Status& status) override {
    std::lock_guard lock(mutex_);
    Check(!end_, "finished twice");
    Check(!writing_, "finished during a write");
    end_ = status;
    changed_.notify_all();
  }

 private:
  void Check(bool holds, const char* breach) {
    if (!holds && violation_.empty()) violation_ = breach;
  }
  void DeliverLocked() {
    if (!reading_ || inbox_.empty()) return;
    reading_ = false;
    pool_.Post([stream = stream_, message = std::move(inbox_.front())]() mutable {
      stream->OnMessage(&message);
    });
    inbox_.pop_front();
  }
  void CompleteWriteLocked() {
    pool_.Post([this, stream = stream_] {
      {
        std::lock_guard lock(mutex_);
        writing_ = false;
      }
      stream->OnWriteDone(true);
    });
  }

  ThreadPool& pool_;
  std::shared_ptr<IngestStream> stream_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<v1::AgentMessage> inbox_;
  bool reading_ = false, writing_ = false, hold_writes_ = false;
  std::vector<v1::CollectorMessage> sent_;
  std::optional<Status> end_;
  std::string violation_;
};

}  // namespace statcollect::testing

#endif  // STATCOLLECT_TESTS_SERVER_INGEST_FAKE_WIRE_H_
