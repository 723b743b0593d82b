#include "server/ingest/grpc_service.h"

#include <chrono>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <grpcpp/alarm.h>
#include <grpcpp/grpcpp.h>

#include "proto/convert.h"
#include "server/access/current.h"
#include "statcollect/v1/ingest.grpc.pb.h"

#include "common/thread_annotations.h"

namespace statcollect {
namespace {

using StreamPointer = std::shared_ptr<IngestStream>;

grpc::Status ToGrpc(const Status& status) {
  return {static_cast<grpc::StatusCode>(status.code()), status.message()};
}

Status TooMany(std::size_t streams_max) {
  return {Code::kResourceExhausted, "stream: " + std::to_string(streams_max) +
                                        " are open; expected fewer (statcollectord "
                                        "--connections-max); the agent retries by itself"};
}

// The streams that gRPC has open. Thread-safe.
class StreamSet {
 public:
  enum class Added { kYes, kDraining, kTooMany };
  // Unless it is kYes, the caller ends the stream; it is in the set meanwhile.
  Added Add(StreamPointer stream, std::size_t streams_max) {
    MutexLock lock(mutex_);
    streams_.insert(std::move(stream));
    if (draining_) return Added::kDraining;
    return streams_.size() > streams_max ? Added::kTooMany : Added::kYes;
  }
  void Remove(const StreamPointer& stream) {
    MutexLock lock(mutex_);
    streams_.erase(stream);
    if (streams_.empty()) empty_.notify_all();
  }
  std::vector<StreamPointer> All() {
    MutexLock lock(mutex_);
    return {streams_.begin(), streams_.end()};
  }
  std::vector<StreamPointer> BeginDrain() {
    MutexLock lock(mutex_);
    draining_ = true;
    return {streams_.begin(), streams_.end()};
  }
  bool AwaitEmpty(std::chrono::milliseconds timeout) {
    MutexLock lock(mutex_);
    return empty_.wait_for(mutex_, timeout,
                           [this]() STATCOLLECT_REQUIRES(mutex_) { return streams_.empty(); });
  }

 private:
  Mutex mutex_;
  ConditionVariable empty_;
  std::set<StreamPointer> streams_ STATCOLLECT_GUARDED_BY(mutex_);
  bool draining_ STATCOLLECT_GUARDED_BY(mutex_) = false;
};

using BidiReactor = grpc::ServerBidiReactor<v1::AgentMessage, v1::CollectorMessage>;

// Reads for a reactor, later. Outlives the reactor, because the alarm may be due just then.
// Thread-safe.
class LateRead : public std::enable_shared_from_this<LateRead> {
 public:
  LateRead(BidiReactor* reactor, v1::AgentMessage* request)
      : reactor_(reactor), request_(request) {}

  void ReadIn(std::chrono::nanoseconds wait) {
    alarm_.Set(std::chrono::system_clock::now() +
                   std::chrono::duration_cast<std::chrono::microseconds>(wait),
               [self = shared_from_this()](bool due) {
                 MutexLock lock(self->mutex_);
                 // Under the lock, so that the reactor does not finish meanwhile. gRPC does not
                 // call back from here.
                 if (due && self->reactor_ != nullptr) self->reactor_->StartRead(self->request_);
               });
  }
  // Nothing is read any more.
  void End() {
    {
      MutexLock lock(mutex_);
      reactor_ = nullptr;
    }
    alarm_.Cancel();
  }

 private:
  grpc::Alarm alarm_;
  Mutex mutex_;
  BidiReactor* reactor_ STATCOLLECT_GUARDED_BY(mutex_);
  v1::AgentMessage* const request_;
};

// Joins a stream to gRPC. Owns itself: gRPC calls OnDone last, after Finish and every operation.
class Reactor final : public BidiReactor, public StreamTransport {
 public:
  Reactor(const StreamContext& context, StreamSet& streams, const access::Principal& caller,
          StreamOf of)
      : streams_(streams),
        clock_(context.clock),
        rates_(context.rates),
        caller_(caller.IsNobody() ? "" : caller.Name()),
        late_read_(std::make_shared<LateRead>(this, &request_)),
        stream_(std::make_shared<IngestStream>(context, this, caller.project, of)) {
    stream_->Start();
    switch (streams_.Add(stream_, context.streams_max)) {
      case StreamSet::Added::kYes:
        break;
      case StreamSet::Added::kDraining:
        stream_->Drain();
        break;
      case StreamSet::Added::kTooMany:
        stream_->EndStream(TooMany(context.streams_max));
        break;
    }
  }

  void OnReadDone(bool ok) override {
    if (ok && rates_ != nullptr) bytes_ = request_.ByteSizeLong();
    ok ? stream_->OnMessage(&request_) : stream_->OnReadsDone();
  }
  void OnWriteDone(bool ok) override { stream_->OnWriteDone(ok); }
  void OnCancel() override { stream_->OnCancel(); }
  void OnDone() override {
    late_read_->End();
    streams_.Remove(stream_);
    delete this;
  }

 private:
  void StartRead() override {
    const std::uint64_t bytes = std::exchange(bytes_, 0);
    // A hello, before which nothing was read, does not wait for what others have sent: it would
    // seem to be missing.
    const bool pays = rates_ != nullptr && bytes > 0;
    const auto wait =
        pays ? rates_->Take(caller_, bytes, clock_.Now()) : std::chrono::nanoseconds(0);
    wait < std::chrono::milliseconds(1) ? BidiReactor::StartRead(&request_)
                                        : late_read_->ReadIn(wait);
  }
  void StartWrite(v1::CollectorMessage message) override {
    response_ = std::move(message);
    BidiReactor::StartWrite(&response_);
  }
  void Finish(const Status& status) override {
    late_read_->End();
    BidiReactor::Finish(ToGrpc(status));
  }

  StreamSet& streams_;
  const Clock& clock_;
  ByteRates* const rates_;
  const std::string caller_;
  std::uint64_t bytes_ = 0;  // of the message at hand
  v1::AgentMessage request_;
  v1::CollectorMessage response_;
  const std::shared_ptr<LateRead> late_read_;
  const StreamPointer stream_;
};

class GrpcIngestService final : public IngestService, private v1::Ingest::CallbackService {
 public:
  explicit GrpcIngestService(const StreamContext& context) : context_(context) {}

  grpc::Service* service() override { return this; }
  void CheckHellos(std::chrono::milliseconds timeout) override {
    const auto now = context_.clock.Now();
    for (const StreamPointer& stream : streams_.All()) stream->CheckHello(now, timeout);
  }
  void BeginDrain() override {
    for (const StreamPointer& stream : streams_.BeginDrain()) stream->Drain();
  }
  bool AwaitStreams(std::chrono::milliseconds timeout) override {
    return streams_.AwaitEmpty(timeout);
  }

 private:
  grpc::ServerBidiReactor<v1::AgentMessage, v1::CollectorMessage>* Stream(
      grpc::CallbackServerContext* /*context*/) override {
    return new Reactor(context_, streams_, access::CurrentPrincipal(), StreamOf::kAgent);
  }
  grpc::ServerBidiReactor<v1::AgentMessage, v1::CollectorMessage>* Copy(
      grpc::CallbackServerContext* /*context*/) override {
    return new Reactor(context_, streams_, access::CurrentPrincipal(), StreamOf::kCopy);
  }

  const StreamContext context_;
  StreamSet streams_;
};

}  // namespace

void LimitMessages(grpc::ServerBuilder& builder) {
  builder.SetMaxReceiveMessageSize(static_cast<int>(kMessageBytesMax));
  builder.SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_DEFLATE, false);
  builder.SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_GZIP, false);
}

std::unique_ptr<IngestService> MakeIngestService(const StreamContext& context) {
  return std::make_unique<GrpcIngestService>(context);
}

}  // namespace statcollect
