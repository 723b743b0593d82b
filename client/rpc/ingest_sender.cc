#include "client/rpc/ingest_sender.h"
#include "client/rpc/credentials.h"

#include <algorithm>
#include <deque>
#include <optional>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>

#include "client/rpc/token.h"
#include "common/checksum.h"
#include "common/names.h"
#include "common/thread_annotations.h"
#include "proto/convert.h"
#include "statcollect/v1/ingest.grpc.pb.h"

namespace statcollect::client {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr milliseconds kBackoffMin{100}, kBackoffMax{5000};
constexpr int kKeepaliveMs = 10'000;
constexpr std::size_t kMessageBytesMaxShown = 4000;

using Call = grpc::ClientReaderWriter<v1::AgentMessage, v1::CollectorMessage>;

// As the agent's exporter sees it: these do not get better by trying again.
bool IsFatal(Code code) {
  switch (code) {
    case Code::kAlreadyExists:
    case Code::kInvalidArgument:
    case Code::kFailedPrecondition:
    case Code::kAborted:
    case Code::kUnauthenticated:
    case Code::kPermissionDenied:
    case Code::kUnimplemented:
      return true;
    default:
      return false;
  }
}

std::shared_ptr<grpc::Channel> MakeIngestChannel(const std::string& address,
                                                 const tls::Material& tls) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveMs);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveMs);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return grpc::CreateCustomChannel(TargetOf(address), MakeCredentials(address, tls), arguments);
}

}  // namespace

// A batch that the collector has not acknowledged yet.
struct Waiting {
  v1::AgentMessage message;
  std::uint64_t last_seq = 0;
  std::uint64_t stat_records = 0;
  std::size_t bytes = 0;
};

class IngestSender::Impl {
 public:
  Impl(SenderOptions options, SessionInfo session)
      : options_(std::move(options)),
        session_(std::move(session)),
        next_seq_(options_.first_seq),
        durable_seq_(options_.first_seq - 1) {}

  ~Impl() { CutOff(); }

  Status Send(RecordBatch batch) {
    return Send(std::make_shared<const Waiting>(Encode(std::move(batch))));
  }

  Status SendEncoded(std::uint64_t records, std::string bytes) {
    auto waiting = std::make_shared<Waiting>();
    v1::Batch* batch = waiting->message.mutable_batch();
    batch->set_first_seq(next_seq_);
    batch->set_n(static_cast<std::uint32_t>(records));
    batch->set_crc(Crc32c(bytes));
    batch->set_records(std::move(bytes));
    next_seq_ += records;
    waiting->last_seq = next_seq_ - 1;
    waiting->bytes = batch->records().size();
    return Send(std::move(waiting));
  }

  Status Send(std::shared_ptr<const Waiting> waiting) {
    STATCOLLECT_RETURN_IF_ERROR(AwaitRoom(waiting->bytes));
    {
      MutexLock lock(mutex_);
      window_bytes_ += waiting->bytes;
      window_.push_back(waiting);
    }
    return call_->Write(waiting->message) ? Status::Ok() : Reconnect();
  }

  Status AwaitDurable() { return AwaitEmpty(); }

  Status Finish(const std::map<std::string, std::uint64_t>& dropped) {
    if (next_seq_ == 1) return Status::Ok();  // nothing was sent: there is no session
    AgentCounters counters{.acked = next_seq_ - 1, .dropped_by_cause = dropped};
    counters.produced = counters.acked + counters.dropped();
    v1::AgentMessage goodbye;
    *goodbye.mutable_goodbye()->mutable_counters() = ToWire(counters);
    while (true) {
      STATCOLLECT_RETURN_IF_ERROR(AwaitEmpty());
      if (call_->Write(goodbye)) call_->WritesDone();
      const Status end = EndCall();
      if (end.ok() || IsFatal(end.code())) return Explain(end);
      STATCOLLECT_RETURN_IF_ERROR(Reconnect());
    }
  }

  void Cancel() {
    MutexLock lock(mutex_);
    cancelled_ = true;
    if (context_ != nullptr) context_->TryCancel();
    changed_.notify_all();
  }

  std::uint64_t durable_records() const {
    MutexLock lock(mutex_);
    return durable_records_;
  }
  std::uint64_t durable_before() const {
    MutexLock lock(mutex_);
    return durable_before_.value_or(0);
  }
  std::uint32_t activations_before() const {
    MutexLock lock(mutex_);
    return activations_before_;
  }
  std::uint32_t attempt() const {
    MutexLock lock(mutex_);
    return attempt_;
  }

 private:
  Waiting Encode(RecordBatch batch) {
    batch.first_seq = next_seq_;
    next_seq_ += batch.records();
    Waiting waiting;
    waiting.last_seq = batch.last_seq();
    waiting.stat_records = batch.stats.size();
    *waiting.message.mutable_batch() = ToWire(batch, layouts_);
    waiting.bytes = waiting.message.batch().records().size();
    for (Layout& layout : batch.layouts) layouts_.push_back(std::move(layout));
    return waiting;
  }

  Status AwaitRoom(std::size_t bytes) {
    return Await([&]() STATCOLLECT_REQUIRES(mutex_) {
      return window_.empty() ||
             (window_.size() < kWindowBatchesMax && window_bytes_ + bytes <= kWindowBytesMax);
    });
  }
  Status AwaitEmpty() {
    return Await([&]() STATCOLLECT_REQUIRES(mutex_) { return window_.empty(); });
  }

  // Reconnects as often as necessary; returns with an open call. `done` is called with the mutex
  // held.
  template <typename Done>
  Status Await(Done done) {
    while (true) {
      if (call_ == nullptr) STATCOLLECT_RETURN_IF_ERROR(Reconnect());
      MutexLock lock(mutex_);
      changed_.wait(mutex_,
                    [&]() STATCOLLECT_REQUIRES(mutex_) { return cancelled_ || ended_ || done(); });
      if (cancelled_) return Cancelled();
      if (!ended_) return Status::Ok();
      lock.unlock();
      STATCOLLECT_RETURN_IF_ERROR(Reconnect());
    }
  }

  // Ends the call that there is, if any, and opens one on which everything that waits has been
  // sent.
  Status Reconnect() {
    auto deadline = steady_clock::now() + options_.patience;
    milliseconds backoff = kBackoffMin;
    Status why = call_ == nullptr ? Status::Ok() : EndCall();
    while (true) {
      if (cancelled()) return Cancelled();
      if (!why.ok() && IsFatal(why.code())) return Explain(why);
      if (!why.ok()) {
        if (steady_clock::now() + backoff > deadline) return GivenUp(why);
        Sleep(backoff);
        backoff = std::min(backoff * 2, kBackoffMax);
      }
      why = Open();
      if (why.ok()) why = Resend();
      if (why.ok()) return why;
      if (call_ != nullptr) {
        const Status end = EndCall();
        if (!end.ok() && !IsFatal(why.code())) why = end;
      }
    }
  }

  // Says hello and waits for the welcome.
  Status Open() {
    channel_ = MakeIngestChannel(options_.address, options_.tls);
    stub_ = v1::Ingest::NewStub(channel_);
    if (!channel_->WaitForConnected(std::chrono::system_clock::now() + milliseconds(1000)))
      return {Code::kUnavailable, "nothing answers at " + Printable(options_.address)};
    auto context = std::make_unique<grpc::ClientContext>();
    STATCOLLECT_RETURN_IF_ERROR(AddCaller(options_.token_file, options_.project, context.get()));
    v1::AgentMessage hello;
    {
      MutexLock lock(mutex_);
      context_ = std::move(context);
      if (cancelled_) context_->TryCancel();
      ended_ = welcomed_ = false;
      call_ = stub_->Stream(context_.get());
      *hello.mutable_hello() = ToWire(session_, durable_seq_ + 1);
    }
    hello.mutable_hello()->set_late(options_.late);
    const bool sent = call_->Write(hello);
    reader_ = std::thread([this] { ReadAll(); });
    MutexLock lock(mutex_);
    changed_.wait(mutex_, [&]() STATCOLLECT_REQUIRES(mutex_) { return ended_ || welcomed_; });
    if (!sent || !welcomed_) return {Code::kUnavailable, "the stream ended before its welcome"};
    if (!regressed_) return Status::Ok();
    context_->TryCancel();
    if (lacks_before_) {
      return {Code::kFailedPrecondition,
              fmt::format("the collector has the session's records up to {}, and these begin with "
                          "{}; expected none "
                          "missing between; was it restored from a checkpoint?",
                          *durable_before_, options_.first_seq)};
    }
    return {Code::kFailedPrecondition,
            "the collector came back with less than it had acknowledged (was it restored?); import "
            "again with "
            "--if-exists replace"};
  }

  Status Resend() {
    std::vector<std::shared_ptr<const Waiting>> batches;
    {
      MutexLock lock(mutex_);
      batches.assign(window_.begin(), window_.end());
    }
    for (const auto& waiting : batches) {
      if (!call_->Write(waiting->message)) return {Code::kUnavailable, "the stream ended"};
    }
    return Status::Ok();
  }

  void ReadAll() {
    v1::CollectorMessage message;
    while (call_->Read(&message)) {
      MutexLock lock(mutex_);
      if (message.has_welcome()) {
        attempt_ = message.welcome().attempt();
        regressed_ = message.welcome().durable_seq() < durable_seq_;
        lacks_before_ = regressed_ && !durable_before_;
        if (!durable_before_) {
          durable_before_ = message.welcome().durable_seq();
          activations_before_ = message.welcome().activations();
        }
        Acknowledge(message.welcome().durable_seq());
        welcomed_ = true;
      }
      if (message.has_ack()) Acknowledge(message.ack().durable_seq());
      changed_.notify_all();
    }
    MutexLock lock(mutex_);
    ended_ = true;
    changed_.notify_all();
  }

  void Acknowledge(std::uint64_t seq) STATCOLLECT_REQUIRES(mutex_) {
    durable_seq_ = std::max(durable_seq_, seq);
    while (!window_.empty() && window_.front()->last_seq <= seq) {
      durable_records_ += window_.front()->stat_records;
      window_bytes_ -= window_.front()->bytes;
      window_.pop_front();
    }
  }

  // Waits for the call's end; its status.
  Status EndCall() {
    reader_.join();
    const grpc::Status status = call_->Finish();
    call_.reset();
    {
      MutexLock lock(mutex_);
      context_.reset();
    }
    return {static_cast<Code>(status.error_code()), status.error_message()};
  }

  void CutOff() {
    if (call_ == nullptr) return;
    {
      MutexLock lock(mutex_);
      context_->TryCancel();
    }
    (void)EndCall();
  }

  void Sleep(milliseconds time) {
    MutexLock lock(mutex_);
    changed_.wait_for(mutex_, time, [&]() STATCOLLECT_REQUIRES(mutex_) { return cancelled_; });
  }

  bool cancelled() const {
    MutexLock lock(mutex_);
    return cancelled_;
  }
  static Status Cancelled() { return {Code::kCancelled, "interrupted"}; }

  Status Explain(const Status& status) const {
    if (status.ok()) return status;
    if (cancelled()) return Cancelled();
    return {status.code(),
            fmt::format("{} (collector {})", Printable(status.message(), kMessageBytesMaxShown),
                        Printable(options_.address))};
  }
  Status GivenUp(const Status& why) const {
    return {Code::kUnavailable,
            fmt::format("lost the collector at {} for {:g} s ({}); is it running?",
                        Printable(options_.address),
                        static_cast<double>(options_.patience.count()) / 1000,
                        Printable(why.message(), kMessageBytesMaxShown))};
  }

  const SenderOptions options_;
  const SessionInfo session_;
  // Used by the caller's thread only.
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::Ingest::Stub> stub_;
  std::unique_ptr<Call> call_;  // its Read is the reader's
  std::thread reader_;
  std::vector<Layout> layouts_;  // that batches so far have defined
  std::uint64_t next_seq_;

  mutable Mutex mutex_;  // guards everything below
  ConditionVariable changed_;
  std::unique_ptr<grpc::ClientContext> context_ STATCOLLECT_GUARDED_BY(mutex_);
  std::deque<std::shared_ptr<const Waiting>> window_ STATCOLLECT_GUARDED_BY(mutex_);
  std::size_t window_bytes_ STATCOLLECT_GUARDED_BY(mutex_) = 0;
  std::uint64_t durable_seq_ STATCOLLECT_GUARDED_BY(mutex_);
  std::uint64_t durable_records_ STATCOLLECT_GUARDED_BY(mutex_) = 0;
  std::optional<std::uint64_t> durable_before_ STATCOLLECT_GUARDED_BY(mutex_);
  std::uint32_t activations_before_ STATCOLLECT_GUARDED_BY(mutex_) = 0;
  bool lacks_before_ STATCOLLECT_GUARDED_BY(mutex_) = false;
  std::uint32_t attempt_ STATCOLLECT_GUARDED_BY(mutex_) = 0;
  bool welcomed_ STATCOLLECT_GUARDED_BY(mutex_) = false,
                 regressed_ STATCOLLECT_GUARDED_BY(mutex_) = false,
                 ended_ STATCOLLECT_GUARDED_BY(mutex_) = false,
                 cancelled_ STATCOLLECT_GUARDED_BY(mutex_) = false;
};

IngestSender::IngestSender(SenderOptions options, SessionInfo session)
    : impl_(std::make_unique<Impl>(std::move(options), std::move(session))) {}
IngestSender::~IngestSender() = default;
Status IngestSender::Send(RecordBatch batch) { return impl_->Send(std::move(batch)); }
Status IngestSender::SendEncoded(std::uint64_t records, std::string bytes) {
  return impl_->SendEncoded(records, std::move(bytes));
}
Status IngestSender::AwaitDurable() { return impl_->AwaitDurable(); }
std::uint64_t IngestSender::durable_before() const { return impl_->durable_before(); }
std::uint32_t IngestSender::activations_before() const { return impl_->activations_before(); }
Status IngestSender::Finish(const std::map<std::string, std::uint64_t>& dropped) {
  return impl_->Finish(dropped);
}
void IngestSender::Cancel() { impl_->Cancel(); }
std::uint64_t IngestSender::durable_records() const { return impl_->durable_records(); }
std::uint32_t IngestSender::attempt() const { return impl_->attempt(); }

SessionId RandomSessionId() {
  SessionId id{};
  std::random_device random;
  for (auto& byte : id) byte = static_cast<std::uint8_t>(random());
  return id;
}

}  // namespace statcollect::client
