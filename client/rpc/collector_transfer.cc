// Runs that are copied from one collector to another.
#include <cstddef>
#include <deque>
#include <thread>
#include <utility>

#include "client/rpc/collector_impl.h"
#include "proto/convert.h"

namespace statcollect::client {
namespace {

// Calls `take` for each message of a stream; its error cancels the call and becomes `failure`.
template <typename Message, typename Stream, typename Take>
grpc::Status ReadAll(grpc::ClientContext& context, Stream& stream, const Take& take,
                     Status* failure) {
  Message message;
  while (failure->ok() && stream.Read(&message)) {
    *failure = take(message);
    if (!failure->ok()) context.TryCancel();
  }
  return stream.Finish();
}

class OpenCopy final : public CopyStream {
 public:
  using Call = grpc::ClientReaderWriter<v1::AgentMessage, v1::CollectorMessage>;

  explicit OpenCopy(Call& call) : call_(call), reader_([this] { ReadAnswers(); }) {}
  // The call must have been ended or cancelled.
  ~OpenCopy() override { reader_.join(); }

  bool AwaitWelcome() {
    return Await([this]() STATCOLLECT_REQUIRES(mutex_) { return welcomed_; });
  }
  bool AwaitDurable() {
    return Await([this]() STATCOLLECT_REQUIRES(mutex_) { return window_.empty(); });
  }
  // After AwaitWelcome.
  const v1::Welcome& welcome() const override { return welcome_; }

  Status Send(v1::Batch batch) override {
    const Waiting waiting{.last_seq = batch.first_seq() + batch.n() - 1,
                          .bytes = batch.records().size()};
    const bool room = Await([&]() STATCOLLECT_REQUIRES(mutex_) {
      return window_.empty() || (window_.size() < kWindowBatchesMax &&
                                 window_bytes_ + waiting.bytes <= kWindowBytesMax);
    });
    if (!room) return Ended();
    {
      MutexLock lock(mutex_);
      window_.push_back(waiting);
      window_bytes_ += waiting.bytes;
    }
    v1::AgentMessage message;
    *message.mutable_batch() = std::move(batch);
    return call_.Write(message) ? Status::Ok() : Ended();
  }
  std::uint64_t durable_seq() const override {
    MutexLock lock(mutex_);
    return durable_seq_;
  }

 private:
  struct Waiting {
    std::uint64_t last_seq = 0;
    std::size_t bytes = 0;
  };

  // The call's status says why.
  static Status Ended() { return {Code::kUnavailable, "the stream ended"}; }

  // False: the stream has ended. `done` is called with the mutex held.
  template <typename Done>
  bool Await(Done done) {
    MutexLock lock(mutex_);
    changed_.wait(mutex_, [&]() STATCOLLECT_REQUIRES(mutex_) { return ended_ || done(); });
    return done();
  }

  void ReadAnswers() {
    v1::CollectorMessage message;
    while (call_.Read(&message)) {
      MutexLock lock(mutex_);
      if (message.has_welcome()) {
        welcome_ = message.welcome();
        durable_seq_ = welcome_.durable_seq();
        welcomed_ = true;
      }
      if (message.has_ack()) durable_seq_ = message.ack().durable_seq();
      while (!window_.empty() && window_.front().last_seq <= durable_seq_) {
        window_bytes_ -= window_.front().bytes;
        window_.pop_front();
      }
      changed_.notify_all();
    }
    MutexLock lock(mutex_);
    ended_ = true;
    changed_.notify_all();
  }

  Call& call_;
  mutable Mutex mutex_;  // guards everything below
  ConditionVariable changed_;
  v1::Welcome welcome_;  // written once, before welcomed_
  std::deque<Waiting> window_ STATCOLLECT_GUARDED_BY(mutex_);
  std::size_t window_bytes_ STATCOLLECT_GUARDED_BY(mutex_) = 0;
  std::uint64_t durable_seq_ STATCOLLECT_GUARDED_BY(mutex_) = 0;
  bool welcomed_ STATCOLLECT_GUARDED_BY(mutex_) = false, ended_
                                                         STATCOLLECT_GUARDED_BY(mutex_) = false;
  std::thread reader_;  // last: it uses everything above
};

}  // namespace

Result<v1::DescribeStoreResponse> Collector::DescribeStore() {
  return impl_->Ask(&v1::Transfer::Stub::DescribeStore, v1::DescribeStoreRequest());
}

Status Collector::DescribeRun(const v1::DescribeRunRequest& request,
                              const std::function<Status(v1::RunPart&)>& take) {
  Status failure;
  const Status answered = impl_->Run([&](grpc::ClientContext& context) {
    const auto stream = impl_->transfer().DescribeRun(&context, request);
    return ReadAll<v1::RunPart>(context, *stream, take, &failure);
  });
  return failure.ok() || answered.code() == Code::kCancelled ? answered : failure;
}

Status Collector::ReadRank(const v1::ReadRankRequest& request,
                           const std::function<Status(v1::Batch&)>& take) {
  Status failure;
  const Status answered = impl_->Run([&](grpc::ClientContext& context) {
    const auto stream = impl_->transfer().ReadRank(&context, request);
    return ReadAll<v1::Batch>(context, *stream, take, &failure);
  });
  return failure.ok() || answered.code() == Code::kCancelled ? answered : failure;
}

Status Collector::DigestRank(const v1::DigestRankRequest& request,
                             const std::function<Status(const v1::DigestRankResponse&)>& take) {
  Status failure;
  const Status answered = impl_->Run([&](grpc::ClientContext& context) {
    const auto stream = impl_->transfer().DigestRank(&context, request);
    return ReadAll<v1::DigestRankResponse>(context, *stream, take, &failure);
  });
  return failure.ok() || answered.code() == Code::kCancelled ? answered : failure;
}

Status Collector::BeginCopy(const v1::BeginCopyRequest& request) {
  return impl_->Ask(&v1::Transfer::Stub::BeginCopy, request).status();
}

Status Collector::WritePart(const v1::WritePartRequest& request) {
  return impl_->Ask(&v1::Transfer::Stub::WritePart, request).status();
}

Status Collector::CopyRank(const v1::Hello& hello, const std::function<Status(CopyStream&)>& work) {
  Status failure;
  bool stored = false;
  const Status answered = impl_->Run([&](grpc::ClientContext& context) {
    const auto call = impl_->ingest().Copy(&context);
    v1::AgentMessage first;
    *first.mutable_hello() = hello;
    call->Write(first);
    {
      OpenCopy stream(*call);
      if (stream.AwaitWelcome()) {
        failure = work(stream);
        stored = failure.ok() && stream.AwaitDurable();
      }
      if (stored) call->WritesDone();
      if (!failure.ok()) context.TryCancel();
    }
    return call->Finish();
  });
  // The collector ends such a stream without a goodbye, so gRPC reports an error.
  if (stored) return Status::Ok();
  // What the work says only if it is not about the stream itself.
  return failure.ok() || failure.code() == Code::kUnavailable || answered.code() == Code::kCancelled
             ? answered
             : failure;
}

}  // namespace statcollect::client
