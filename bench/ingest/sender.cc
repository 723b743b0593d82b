#include "bench/ingest/sender.h"

#include <algorithm>
#include <array>
#include <deque>
#include <mutex>
#include <optional>
#include <random>
#include <thread>
#include <utility>

#include <grpcpp/alarm.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include "bench/ingest/batch_encoder.h"
#include "proto/convert.h"

namespace statcollect::bench {
namespace {

using TimePoint = std::chrono::steady_clock::time_point;
constexpr char kMethod[] = "/statcollect.v1.Ingest/Stream";
constexpr std::chrono::seconds kConnectTimeout{60};

double Seconds(TimePoint from, TimePoint to) {
  return std::chrono::duration<double>(to - from).count();
}

grpc::ByteBuffer ToBuffer(const v1::AgentMessage& message) {
  const grpc::Slice slice(message.SerializeAsString());
  return {&slice, 1};
}

// A connection of its own, as an agent's.
std::shared_ptr<grpc::Channel> MakeChannel(const std::string& address) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
}

// What all streams have in common. Written before the threads start, unless said otherwise.
struct Shared {
  const SendOptions& options;
  const RecordMaker& maker;
  Progress& progress;
  std::string launch;
  TimePoint begin;  // set before the streams are let go
  std::atomic<std::uint32_t> welcomed{0};
  std::atomic<bool> stopping{false};  // a stream has failed: the others give up
  std::mutex mutex;
  Status failure;      // guarded by mutex
  bool fsync = false;  // guarded by mutex

  void Fail(const Status& status) {
    std::lock_guard lock(mutex);
    if (failure.ok()) failure = status;
    stopping = true;
  }
};

enum class Event : std::uintptr_t { kStarted, kRead, kWritten, kFinished, kGo, kDue };

// One rank. Used by its thread only.
class Rank {
 public:
  // An event of this stream, as gRPC's queue hands it back.
  struct Tag {
    Rank* rank;
    Event event;
  };

  Rank(Shared* shared, BatchEncoder* encoder, grpc::CompletionQueue* queue, std::uint32_t rank)
      : shared_(*shared),
        encoder_(*encoder),
        queue_(queue),
        rank_(rank),
        stub_(MakeChannel(shared->options.collector)) {
    for (std::size_t i = 0; i < tags_.size(); ++i) tags_[i] = {this, static_cast<Event>(i)};
    context_.set_wait_for_ready(true);
    call_ = stub_.PrepareCall(&context_, kMethod, queue);
    call_->StartCall(tag(Event::kStarted));
  }

  void* tag(Event event) { return &tags_[static_cast<std::size_t>(event)]; }
  bool finished() const { return finished_; }
  void Cancel() { context_.TryCancel(); }

  void Handle(Event event, bool ok) {
    switch (event) {
      case Event::kStarted:
        if (!ok) return Finish();
        call_->Write(Hello(), tag(Event::kWritten));
        writing_ = true;
        return call_->Read(&incoming_, tag(Event::kRead));
      case Event::kRead:
        if (!ok) return Finish();
        Receive();
        if (go_) Pump();
        return call_->Read(&incoming_, tag(Event::kRead));
      case Event::kWritten:
        writing_ = false;
        if (ok && go_) Pump();
        return;  // a broken stream ends its read, too
      case Event::kGo:
        go_ = true;
        return Pump();
      case Event::kDue:
        timing_ = false;
        return Pump();
      case Event::kFinished:
        finished_ = true;
        return Judge();
    }
  }

  StreamResult result;
  std::uint64_t batches = 0, bytes = 0;
  std::vector<float> ack_seconds;

 private:
  struct Sent {
    std::uint64_t last_seq;
    std::uint32_t stat_records;
    std::size_t bytes;
    TimePoint at;
  };

  grpc::ByteBuffer Hello() const {
    SessionInfo info;
    info.run = shared_.options.run;
    std::random_device random;
    for (auto& byte : info.session) byte = static_cast<std::uint8_t>(random());
    info.launch = shared_.launch;
    info.if_exists = shared_.options.if_exists;
    info.rank = info.local_rank = rank_;
    info.world_size = shared_.options.streams;
    info.host = "bench";
    info.agent_version = STATCOLLECT_VERSION;
    info.config = shared_.options.config;
    v1::AgentMessage message;
    *message.mutable_hello() = ToWire(info, 1);
    return ToBuffer(message);
  }

  void Receive() {
    v1::CollectorMessage message;
    std::vector<grpc::Slice> slices;
    if (!incoming_.Dump(&slices).ok()) return;
    std::string bytes;
    for (const grpc::Slice& slice : slices)
      bytes.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
    if (!message.ParseFromString(bytes)) {
      shared_.Fail(Status(Code::kDataLoss, "read the collector's message: it does not parse"));
      return context_.TryCancel();
    }
    if (message.has_welcome()) {
      limits_ = message.welcome().limits();
      std::lock_guard lock(shared_.mutex);
      shared_.fsync = message.welcome().fsync();
      ++shared_.welcomed;
    }
    if (message.has_ack()) Acknowledge(message.ack().durable_seq());
  }

  void Acknowledge(std::uint64_t durable_seq) {
    const TimePoint now = std::chrono::steady_clock::now();
    while (!sent_.empty() && sent_.front().last_seq <= durable_seq) {
      const Sent& batch = sent_.front();
      ack_seconds.push_back(static_cast<float>(Seconds(batch.at, now)));
      in_flight_bytes_ -= batch.bytes;
      result.stat_records += batch.stat_records;
      sent_.pop_front();
    }
    result.records = durable_seq;
    result.done_seconds = Seconds(shared_.begin, now);
    shared_.progress[rank_].store(result.stat_records, std::memory_order_relaxed);
  }

  // Sends the next batch if the stream and the window take one; says goodbye when all is
  // acknowledged.
  void Pump() {
    if (writing_ || said_goodbye_ || shared_.stopping.load(std::memory_order_relaxed)) return;
    if (Exhausted()) {
      if (sent_.empty()) SayGoodbye();
      return;
    }
    if (sent_.size() >= limits_.window_batches_max()) return;
    const std::size_t bytes_max = BatchBytesMax(NextRecordsMax(), shared_.maker.sketch());
    if (!sent_.empty() && in_flight_bytes_ + bytes_max > limits_.window_bytes_max()) return;
    if (WaitsForItsTime()) return;
    const std::vector<Segment> segments = NextSegments();
    BatchEncoder::Encoded batch =
        encoder_.Encode(rank_, next_seq_, segments, /*define=*/next_seq_ == 1);
    next_seq_ += batch.records;
    const std::size_t size = batch.message.size();
    const grpc::ByteBuffer buffer(&batch.message, 1);
    sent_.push_back({next_seq_ - 1, batch.stat_records, size, std::chrono::steady_clock::now()});
    in_flight_bytes_ += size;
    bytes += size;
    ++batches;
    writing_ = true;
    call_->Write(buffer, tag(Event::kWritten));
  }

  // With a rate: whether the next batch is not due yet; then an alarm comes when it is. A stream
  // that was held up catches up, as training would not: the rate is of the whole run.
  bool WaitsForItsTime() {
    const double rate = shared_.options.records_per_second / shared_.options.streams;
    if (rate <= 0) return false;
    const double due = static_cast<double>(next_seq_) / rate;
    const double wait = due - Seconds(shared_.begin, std::chrono::steady_clock::now());
    if (wait <= 0) return false;
    if (!timing_) {
      timing_ = true;
      const auto nanos = std::chrono::nanoseconds(static_cast<std::int64_t>(1e9 * wait));
      alarm_ = std::make_unique<grpc::Alarm>();
      alarm_->Set(queue_, std::chrono::system_clock::now() + nanos, tag(Event::kDue));
    }
    return true;
  }

  bool Exhausted() const {
    if (step_ >= shared_.options.steps) return true;
    const auto time_max = shared_.options.time_max;
    return time_max.count() > 0 && std::chrono::steady_clock::now() - shared_.begin >= time_max;
  }

  // The first batch of a session carries the definitions, too.
  std::size_t NextRecordsMax() const {
    std::size_t room = limits_.message_bytes_max() - BatchBytesMax(0, 0);
    if (next_seq_ == 1) room -= std::min(room, encoder_.definition_bytes());
    const std::size_t per_record = BatchBytesMax(1, shared_.maker.sketch()) - BatchBytesMax(0, 0);
    return std::clamp<std::size_t>(room / per_record, 1, shared_.options.batch_records);
  }

  std::vector<Segment> NextSegments() {
    std::vector<Segment> segments;
    const std::uint32_t activations = shared_.maker.network().size();
    for (std::size_t room = NextRecordsMax(); room > 0 && step_ < shared_.options.steps;) {
      const auto n =
          static_cast<std::uint32_t>(std::min<std::size_t>(room, activations - activation_));
      // As an agent does it, a batch ends with a step, unless it cannot hold one.
      if (!segments.empty() && n < activations - activation_) break;
      segments.push_back({step_, activation_, n});
      room -= n;
      activation_ += n;
      if (activation_ == activations) {
        activation_ = 0;
        ++step_;
      }
    }
    return segments;
  }

  void SayGoodbye() {
    v1::AgentMessage message;
    AgentCounters counters;
    counters.produced = counters.acked = next_seq_ - 1;
    *message.mutable_goodbye()->mutable_counters() = ToWire(counters);
    said_goodbye_ = writing_ = true;
    call_->WriteLast(ToBuffer(message), {}, tag(Event::kWritten));
  }

  void Finish() { call_->Finish(&status_, tag(Event::kFinished)); }

  void Judge() {
    if (status_.ok() && said_goodbye_) return;
    if (shared_.stopping) return;
    const std::string what = "stream of rank " + std::to_string(rank_) + ": ";
    if (status_.ok())
      return shared_.Fail(
          Status(Code::kInternal, what + "the collector ended it before the goodbye"));
    shared_.Fail(Status(static_cast<Code>(status_.error_code()), what + status_.error_message()));
  }

  Shared& shared_;
  BatchEncoder& encoder_;
  grpc::CompletionQueue* const queue_;
  const std::uint32_t rank_;
  grpc::GenericStub stub_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> call_;
  std::array<Tag, 6> tags_;
  grpc::ByteBuffer incoming_;
  grpc::Status status_;
  v1::Limits limits_;
  std::unique_ptr<grpc::Alarm> alarm_;
  bool timing_ = false;  // the alarm is on its way
  bool writing_ = false, go_ = false, said_goodbye_ = false, finished_ = false;

  std::uint64_t step_ = 0, next_seq_ = 1;
  std::uint32_t activation_ = 0;
  std::deque<Sent> sent_;  // not acknowledged
  std::size_t in_flight_bytes_ = 0;
};

// Some ranks and the thread that serves them.
class Group {
 public:
  Group(Shared* shared, std::uint32_t first, std::uint32_t stride)
      : shared_(*shared), encoder_(shared->maker), first_(first), stride_(stride) {}

  void Start() {
    for (std::uint32_t rank = first_; rank < shared_.options.streams; rank += stride_)
      ranks_.push_back(std::make_unique<Rank>(&shared_, &encoder_, &queue_, rank));
    thread_ = std::thread([this] { Run(); });
  }

  // Lets the streams send. From another thread.
  void Go() {
    const auto now = std::chrono::system_clock::now();
    for (const auto& rank : ranks_) {
      alarms_.push_back(std::make_unique<grpc::Alarm>());
      alarms_.back()->Set(&queue_, now, rank->tag(Event::kGo));
    }
  }

  void Join() {
    thread_.join();
    queue_.Shutdown();
    void* tag = nullptr;
    bool ok = false;
    while (queue_.Next(&tag, &ok)) {
    }
  }

  const std::vector<std::unique_ptr<Rank>>& ranks() const { return ranks_; }

 private:
  void Run() {
    std::size_t left = ranks_.size();
    bool cancelled = false;
    while (left > 0) {
      void* tag = nullptr;
      bool ok = false;
      const auto soon = std::chrono::system_clock::now() + std::chrono::milliseconds(200);
      if (queue_.AsyncNext(&tag, &ok, soon) == grpc::CompletionQueue::GOT_EVENT) {
        const auto [rank, event] = *static_cast<Rank::Tag*>(tag);
        rank->Handle(event, ok);
        if (event == Event::kFinished) --left;
      }
      if (shared_.stopping && !cancelled) {
        cancelled = true;
        for (const auto& rank : ranks_) rank->Cancel();
      }
    }
  }

  Shared& shared_;
  BatchEncoder encoder_;
  const std::uint32_t first_, stride_;
  grpc::CompletionQueue queue_;
  std::vector<std::unique_ptr<Rank>> ranks_;
  std::vector<std::unique_ptr<grpc::Alarm>> alarms_;
  std::thread thread_;
};

void AwaitWelcomes(Shared* shared) {
  const TimePoint deadline = std::chrono::steady_clock::now() + kConnectTimeout;
  while (shared->welcomed < shared->options.streams && !shared->stopping) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    if (std::chrono::steady_clock::now() < deadline) continue;
    shared->Fail(Status(Code::kDeadlineExceeded,
                        "connect to " + shared->options.collector + ": " +
                            std::to_string(shared->welcomed) + " of " +
                            std::to_string(shared->options.streams) +
                            " streams were welcomed within 60 s; start statcollectord there"));
  }
}

}  // namespace

Result<SendResult> Send(const SendOptions& options, const RecordMaker& maker, Progress* progress) {
  Shared shared{
      .options = options, .maker = maker, .progress = *progress, .launch = {}, .begin = {}};
  shared.launch = "bench-" + std::to_string(std::random_device()());
  std::vector<std::unique_ptr<Group>> groups;
  const std::uint32_t threads = std::min(options.threads, options.streams);
  for (std::uint32_t i = 0; i < threads; ++i)
    groups.push_back(std::make_unique<Group>(&shared, i, threads));
  for (const auto& group : groups) group->Start();
  AwaitWelcomes(&shared);
  shared.begin = std::chrono::steady_clock::now();
  if (!shared.stopping) {
    for (const auto& group : groups) group->Go();
  }
  for (const auto& group : groups) group->Join();
  if (!shared.failure.ok()) return shared.failure;

  SendResult result;
  result.fsync = shared.fsync;
  result.streams.resize(options.streams);
  for (std::uint32_t i = 0; i < options.streams; ++i) {
    const Rank& rank = *groups[i % threads]->ranks()[i / threads];
    result.streams[i] = rank.result;
    result.seconds = std::max(result.seconds, rank.result.done_seconds);
    result.records += rank.result.records;
    result.stat_records += rank.result.stat_records;
    result.batches += rank.batches;
    result.bytes += rank.bytes;
    result.ack_seconds.insert(result.ack_seconds.end(), rank.ack_seconds.begin(),
                              rank.ack_seconds.end());
  }
  std::sort(result.ack_seconds.begin(), result.ack_seconds.end());
  return result;
}

}  // namespace statcollect::bench
