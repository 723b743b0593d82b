// The three kinds of calls, over gRPC's callback API: one answer; progress and then one answer;
// many answers, as fast as the caller reads. A call lives until gRPC is done with it and its work
// has ended. Work runs on a WorkerPool, never on gRPC's threads.
#ifndef STATCOLLECT_SERVER_API_CALLS_H_
#define STATCOLLECT_SERVER_API_CALLS_H_

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <new>
#include <optional>
#include <stop_token>
#include <utility>

#include <grpcpp/alarm.h>
#include <grpcpp/server_context.h>
#include <grpcpp/support/server_callback.h>
#include <grpcpp/support/status.h>

#include "common/names.h"
#include "common/status.h"
#include "common/thread_annotations.h"
#include "server/api/worker_pool.h"

namespace statcollect::api {

// gRPC sends messages in a header of limited size.
inline constexpr std::size_t kStatusBytesMax = 4000;

inline grpc::Status ToGrpc(const Status& status) {
  if (status.ok()) return grpc::Status::OK;
  return {static_cast<grpc::StatusCode>(status.code()),
          Printable(status.message(), kStatusBytesMax)};
}

// Runs `work` and turns exceptions into a status, so that a failure affects only its own query.
inline Status Guarded(const std::function<Status()>& work) {
  try {
    return work();
  } catch (const std::bad_alloc&) {
    return {Code::kResourceExhausted, "query: out of memory; narrow it with --rank or --steps"};
  } catch (const std::exception& failure) {
    return {Code::kInternal, std::string("query: ") + failure.what()};
  }
}

// The status of a stopped call: its own, unless the collector's time limit stopped it.
inline Status Explained(Status status, const WorkItem& item, const WorkerPool& pool) {
  if (status.code() == Code::kCancelled && item.timed_out())
    return {Code::kDeadlineExceeded, pool.TimeLimitMessage()};
  return status;
}

// One request, one answer. `work` fills the response.
class UnaryCall final : public grpc::ServerUnaryReactor,
                        public std::enable_shared_from_this<UnaryCall> {
 public:
  using Work = std::function<Status(const std::stop_token&)>;

  // Returns the reactor for gRPC.
  static grpc::ServerUnaryReactor* Start(WorkerPool& pool, Work work) {
    std::shared_ptr<UnaryCall> call(new UnaryCall(pool));
    call->self_ = call;
    auto item = std::make_shared<WorkItem>(
        [call, work = std::move(work)](const WorkItem& running) {
          const Status status = Guarded([&] { return work(running.stop()); });
          call->Finish(ToGrpc(Explained(status, running, call->pool_)));
        },
        [call](const Status& why) { call->Finish(ToGrpc(why)); });
    call->item_ = item;
    if (const Status full = pool.Submit(std::move(item)); !full.ok()) call->Finish(ToGrpc(full));
    return call.get();
  }

 private:
  explicit UnaryCall(WorkerPool& pool) : pool_(pool) {}

  void OnCancel() override {
    if (const auto item = item_.lock()) pool_.Cancel(item);
  }
  void OnDone() override { const auto last_share = std::move(self_); }

  WorkerPool& pool_;
  std::weak_ptr<WorkItem> item_;     // set once, before gRPC knows the call
  std::shared_ptr<UnaryCall> self_;  // keeps the call alive for gRPC
};

// Sends progress messages while the work runs, then the answer. At most one message is in flight;
// progress that comes before it is sent, or sooner than `interval` after the last one, is skipped.
template <typename Message>
class StreamCall final : public grpc::ServerWriteReactor<Message>,
                         public std::enable_shared_from_this<StreamCall<Message>> {
 public:
  using Send = std::function<void(Message)>;
  // Calls Send for progress and fills `last`.
  using Work = std::function<Status(const std::stop_token&, const Send&, Message& last)>;

  static grpc::ServerWriteReactor<Message>* Start(WorkerPool& pool,
                                                  std::chrono::milliseconds interval, Work work) {
    std::shared_ptr<StreamCall> call(new StreamCall(pool, interval));
    call->self_ = call;
    auto item = std::make_shared<WorkItem>(
        [call, work = std::move(work)](const WorkItem& running) {
          const auto send = [&](Message message) { call->SendProgress(std::move(message)); };
          Message last;
          const Status status = Guarded([&] { return work(running.stop(), send, last); });
          call->End(std::move(last), ToGrpc(Explained(status, running, call->pool_)));
        },
        [call](const Status& why) { call->End({}, ToGrpc(why)); });
    call->item_ = item;
    if (const Status full = pool.Submit(std::move(item)); !full.ok()) call->End({}, ToGrpc(full));
    return call.get();
  }

 private:
  StreamCall(WorkerPool& pool, std::chrono::milliseconds interval)
      : pool_(pool), interval_(interval) {}

  void SendProgress(Message message) {
    MutexLock lock(mutex_);
    const auto now = std::chrono::steady_clock::now();
    if (writing_ || (last_write_ && now - *last_write_ < interval_)) return;
    writing_ = true;
    last_write_ = now;
    message_ = std::move(message);
    this->StartWrite(&message_);
  }

  void End(Message last, grpc::Status status) {
    MutexLock lock(mutex_);
    last_ = std::move(last);
    end_ = std::move(status);
    if (!writing_) FinishLocked();
  }

  void FinishLocked() STATCOLLECT_REQUIRES(mutex_) {
    // Not StartWriteAndFinish: gRPC's in-process transport loses the message where the end
    // overtakes it.
    if (!end_->ok() || last_sent_) return this->Finish(*end_);
    last_sent_ = writing_ = true;
    this->StartWrite(&last_);
  }

  void OnWriteDone(bool /*ok*/) override {  // a failed write means a lost client: OnCancel follows
    MutexLock lock(mutex_);
    writing_ = false;
    if (end_) FinishLocked();
  }
  void OnCancel() override {
    if (const auto item = item_.lock()) pool_.Cancel(item);
  }
  void OnDone() override { const auto last_share = std::move(self_); }

  WorkerPool& pool_;
  const std::chrono::milliseconds interval_;
  std::weak_ptr<WorkItem> item_;      // written once, before gRPC knows the call
  std::shared_ptr<StreamCall> self_;  // gRPC's share of the ownership
  Mutex mutex_;                       // guards everything below
  bool writing_ STATCOLLECT_GUARDED_BY(mutex_) = false;
  bool last_sent_ STATCOLLECT_GUARDED_BY(mutex_) = false;
  std::optional<std::chrono::steady_clock::time_point> last_write_ STATCOLLECT_GUARDED_BY(mutex_);
  std::optional<grpc::Status> end_ STATCOLLECT_GUARDED_BY(mutex_);
  Message message_ STATCOLLECT_GUARDED_BY(mutex_), last_
      STATCOLLECT_GUARDED_BY(mutex_);  // on their way
};

// How slowly a caller may read an answer of any length: no wait for it is longer than `patience`,
// and all of them together are at most that much longer than what it has read takes at
// `bytes_per_second_min`.
struct Pace {
  std::chrono::milliseconds patience{60'000};
  std::uint64_t bytes_per_second_min = 64 << 10;
};

// Sends every message of the work, in order, then a status. Back-pressure: at most one message is
// in flight, and Send waits for it, so the work is as fast as the caller reads. A caller that reads
// more slowly than `pace` gets a status that says so; if it does not read that either, it is
// disconnected after `patience`. The pool's thread is free at once.
template <typename Message>
class FlowCall final : public grpc::ServerWriteReactor<Message>,
                       public std::enable_shared_from_this<FlowCall<Message>> {
 public:
  // Blocks. An error means that the caller is gone; the work must return it.
  using Send = std::function<Status(Message)>;
  using Work = std::function<Status(const std::stop_token&, const Send&)>;

  static grpc::ServerWriteReactor<Message>* Start(WorkerPool& pool,
                                                  grpc::CallbackServerContext& context,
                                                  const Pace& pace, Work work) {
    std::shared_ptr<FlowCall> call(new FlowCall(pool, context, pace));
    call->self_ = call;
    auto item = std::make_shared<WorkItem>(
        [call, work = std::move(work)](const WorkItem& running) {
          const auto send = [&](Message message) {
            return call->SendWhenFree(std::move(message), running.stop());
          };
          const Status status = Guarded([&] { return work(running.stop(), send); });
          call->End(ToGrpc(Explained(status, running, call->pool_)));
        },
        [call](const Status& why) { call->End(ToGrpc(why)); });
    call->item_ = item;
    if (const Status full = pool.Submit(std::move(item)); !full.ok()) call->End(ToGrpc(full));
    return call.get();
  }

 private:
  FlowCall(WorkerPool& pool, grpc::CallbackServerContext& context, const Pace& pace)
      : pool_(pool), context_(context), pace_(pace) {}

  Status SendWhenFree(Message message, const std::stop_token& stop) {
    const auto began = std::chrono::steady_clock::now();
    MutexLock lock(mutex_);
    const std::chrono::steady_clock::duration earned =
        std::chrono::milliseconds(1000 * taken_ / pace_.bytes_per_second_min);
    const bool free = free_.wait_until(
        lock, stop,
        began + pace_.patience + std::min(std::chrono::steady_clock::duration(0), earned - waited_),
        [this]() STATCOLLECT_REQUIRES(mutex_) { return !writing_; });
    waited_ += std::chrono::steady_clock::now() - began;
    if (stop.stop_requested() || lost_) return {Code::kCancelled, "query: cancelled"};
    if (!free) return TooSlowLocked();
    writing_ = true;
    message_ = std::move(message);
    taken_ += message_.ByteSizeLong();  // when the next one is sent
    this->StartWrite(&message_);
    return Status::Ok();
  }

  Status TooSlowLocked() STATCOLLECT_REQUIRES(mutex_) {
    alarm_.Set(std::chrono::system_clock::now() + pace_.patience,
               [call = this->shared_from_this()](bool due) { call->Disconnect(due); });
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(waited_).count();
    return {Code::kDeadlineExceeded,
            "query: the answer was read too slowly: waited " + std::to_string(seconds) +
                " s for the reader to take " + std::to_string(taken_) +
                " bytes; expected at least " + std::to_string(pace_.bytes_per_second_min >> 10) +
                " KiB/s, and no pause of more than " +
                std::to_string(
                    std::chrono::duration_cast<std::chrono::seconds>(pace_.patience).count()) +
                " s; ask for less at a time with --steps or --rank, and read it at once"};
  }

  void Disconnect(bool due) {
    MutexLock lock(mutex_);
    if (!due || !writing_ || done_) return;
    context_.TryCancel();  // ends the write in flight; calls back on another thread
  }

  void End(grpc::Status status) {
    MutexLock lock(mutex_);
    end_ = std::move(status);
    if (!writing_) this->Finish(*end_);
  }

  void OnWriteDone(bool ok) override {  // a failed write means a lost client: OnCancel follows
    MutexLock lock(mutex_);
    writing_ = false;
    lost_ = lost_ || !ok;
    if (end_) this->Finish(*end_);
    free_.notify_all();
  }
  void OnCancel() override {
    if (const auto item = item_.lock()) pool_.Cancel(item);
  }
  void OnDone() override {
    const auto last_share = std::move(self_);
    MutexLock lock(mutex_);
    done_ = true;
    alarm_.Cancel();
  }

  WorkerPool& pool_;
  grpc::CallbackServerContext& context_;  // owned by gRPC, until OnDone
  const Pace pace_;
  std::weak_ptr<WorkItem> item_;    // written once, before gRPC knows the call
  std::shared_ptr<FlowCall> self_;  // gRPC's share of the ownership
  Mutex mutex_;                     // guards everything below
  std::condition_variable_any free_;
  bool writing_
      STATCOLLECT_GUARDED_BY(mutex_) = false,
      lost_ STATCOLLECT_GUARDED_BY(mutex_) = false, done_ STATCOLLECT_GUARDED_BY(mutex_) = false;
  std::chrono::steady_clock::duration waited_ STATCOLLECT_GUARDED_BY(mutex_){
      0};                                                   // for the reader, in all
  std::uint64_t taken_ STATCOLLECT_GUARDED_BY(mutex_) = 0;  // bytes sent
  std::optional<grpc::Status> end_ STATCOLLECT_GUARDED_BY(mutex_);
  Message message_ STATCOLLECT_GUARDED_BY(mutex_);  // on its way
  grpc::Alarm alarm_ STATCOLLECT_GUARDED_BY(mutex_);
};

}  // namespace statcollect::api

#endif  // STATCOLLECT_SERVER_API_CALLS_H_
