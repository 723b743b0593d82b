// A collector behind a real gRPC server on a free loopback port, over a store in memory, and agents
// that say exactly what a test tells them to.
#ifndef STATCOLLECT_TESTS_SERVER_INGEST_HARNESS_H_
#define STATCOLLECT_TESTS_SERVER_INGEST_HARNESS_H_

#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include "common/records.h"
#include "proto/convert.h"
#include "server/ingest/ingest_server.h"
#include "statcollect/v1/ingest.grpc.pb.h"
#include "tests/support/fake_clock.h"
#include "tests/support/fake_store.h"
#include "tests/support/random_batch.h"

namespace statcollect::testing {

// One stream, driven by hand. Reads block for 30 s at most (the call's deadline).
class RawAgent {
 public:
  RawAgent(v1::Ingest::Stub& stub, SessionInfo info) : info_(std::move(info)) {
    context_.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(30));
    stream_ = stub.Stream(&context_);
  }

  const SessionInfo& info() const { return info_; }
  bool Write(const v1::AgentMessage& message) { return stream_->Write(message); }
  bool WriteHello() {
    v1::AgentMessage message;
    *message.mutable_hello() = ToWire(info_, 1);
    return Write(message);
  }
  bool WriteBatch(const RecordBatch& batch) {
    v1::AgentMessage message;
    *message.mutable_batch() = ToWire(batch, layouts_);
    for (const Layout& layout : batch.layouts) {
      if (layout.id == layouts_.size()) layouts_.push_back(layout);
    }
    return Write(message);
  }
  bool WriteGoodbye(const AgentCounters& counters = {}) {
    v1::AgentMessage message;
    *message.mutable_goodbye()->mutable_counters() = ToWire(counters);
    return Write(message);
  }
  // The next message; nothing set if the stream has ended.
  v1::CollectorMessage Read() {
    v1::CollectorMessage message;
    if (!stream_->Read(&message)) message.Clear();
    return message;
  }
  // Hello and welcome. `layouts`: those of a resumed session.
  v1::Welcome Open(std::vector<Layout> layouts = {}) {
    layouts_ = std::move(layouts);
    WriteHello();
    v1::CollectorMessage message = Read();
    EXPECT_TRUE(message.has_welcome());
    return message.welcome();
  }
  // Reads until `seq` is acknowledged; false if the stream ends before.
  bool AwaitAck(std::uint64_t seq) {
    while (acked_ < seq) {
      const v1::CollectorMessage message = Read();
      if (!message.has_ack()) return false;
      EXPECT_GE(message.ack().durable_seq(), acked_) << "acknowledgements do not go back";
      acked_ = message.ack().durable_seq();
      ++acks_;
    }
    return true;
  }
  std::uint64_t acked() const { return acked_; }
  int acks() const { return acks_; }
  void Cancel() { context_.TryCancel(); }
  void HalfClose() { stream_->WritesDone(); }
  // Reads what is left, then the collector's verdict.
  Status Finish() {
    for (v1::CollectorMessage message; stream_->Read(&message);) {
      if (message.has_ack()) acked_ = message.ack().durable_seq();
    }
    const grpc::Status status = stream_->Finish();
    return Status(static_cast<Code>(status.error_code()), status.error_message());
  }

 private:
  SessionInfo info_;
  std::vector<Layout> layouts_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::AgentMessage, v1::CollectorMessage>> stream_;
  std::uint64_t acked_ = 0;
  int acks_ = 0;
};

class Harness {
 public:
  explicit Harness(CollectorOptions options = {}) : Harness(nullptr, std::move(options)) {}
  // Over another store that the test has, instead of `store`.
  Harness(Store& other, CollectorOptions options) : Harness(&other, std::move(options)) {}
  ~Harness() {
    store.ReleaseAppends();
    collector->Drain();
    server->Shutdown(std::chrono::system_clock::now() + std::chrono::seconds(2));
    server->Wait();
    EXPECT_EQ(store.violation(), "");
  }

  static SessionInfo Session(std::uint32_t rank = 0, std::uint8_t session = 1,
                             std::uint32_t world = 2) {
    SessionInfo info;
    info.run = "base";
    info.launch = "L";
    info.rank = rank;
    info.world_size = world;
    info.session = {session, static_cast<std::uint8_t>(rank), static_cast<std::uint8_t>(rank >> 8)};
    info.if_exists = IfExists::kError;
    return info;
  }
  std::unique_ptr<RawAgent> Agent(SessionInfo info = Session()) {
    return std::make_unique<RawAgent>(*stub, std::move(info));
  }
  RankMeta Stored(std::uint32_t rank = 0, const std::string& run = "base") {
    return store.Ranks(store.Attempts(run).value().back().id).value()[rank];
  }
  // Waits for what another thread is about to do; only for conditions that nothing can be waited on
  // for.
  static bool Eventually(const std::function<bool()>& condition) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (!condition()) {
      if (std::chrono::steady_clock::now() > deadline) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return true;
  }

  FakeStore store;
  FakeClock clock;
  std::unique_ptr<IngestServer> collector;
  int port = 0;
  std::unique_ptr<grpc::Server> server;
  std::shared_ptr<grpc::Channel> channel;
  std::unique_ptr<v1::Ingest::Stub> stub;

 private:
  Harness(Store* other, const CollectorOptions& options)
      : collector(
            std::make_unique<IngestServer>(other == nullptr ? store : *other, clock, options)) {
    grpc::ServerBuilder builder;
    LimitMessages(builder);
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(collector->service());
    server = builder.BuildAndStart();
    channel = grpc::CreateChannel("127.0.0.1:" + std::to_string(port),
                                  grpc::InsecureChannelCredentials());
    stub = v1::Ingest::NewStub(channel);
  }
};

// The n-th batch (from 0) of a session that sends batches of the same shape, one step each.
inline RecordBatch NthBatch(std::uint64_t n, std::uint64_t seed = 0) {
  BatchShape shape{.activations = 4, .first_step = n, .steps = 1, .define = n == 0};
  const std::uint64_t records = RandomBatch(0, 1, shape).records();
  return RandomBatch(seed * 1000 + n, 1 + n * records, shape);
}

}  // namespace statcollect::testing

#endif  // STATCOLLECT_TESTS_SERVER_INGEST_HARNESS_H_
