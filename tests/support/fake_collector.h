// A real gRPC server on a free loopback port that implements Ingest as docs/protocol.md says, over
// a store in memory that outlives it: for tests of the agent with restarts in the middle.
#ifndef STATCOLLECT_TESTS_SUPPORT_FAKE_COLLECTOR_H_
#define STATCOLLECT_TESTS_SUPPORT_FAKE_COLLECTOR_H_

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include <grpcpp/grpcpp.h>

#include "common/records.h"
#include "proto/convert.h"
#include "statcollect/v1/ingest.grpc.pb.h"

namespace statcollect::testing {

// What the server keeps over restarts. Thread-safe.
class MemoryStore {
 public:
  struct Session {
    SessionInfo info;
    std::uint64_t watermark = 0;
    std::vector<Layout> layouts;
    std::vector<TensorDef> activations;
    std::vector<RecordBatch> batches;
    std::optional<AgentCounters> goodbye;
    std::string error;  // what was wrong with a batch
  };

  Session Get(const SessionId& id) {
    std::lock_guard lock(mutex_);
    return sessions_[id];
  }
  // The only session there is.
  Session Only() {
    std::lock_guard lock(mutex_);
    return sessions_.size() == 1 ? sessions_.begin()->second : Session{};
  }
  std::size_t sessions() {
    std::lock_guard lock(mutex_);
    return sessions_.size();
  }
  void Update(const SessionId& id, const std::function<void(Session&)>& change) {
    {
      std::lock_guard lock(mutex_);
      change(sessions_[id]);
    }
    changed_.notify_all();
  }
  // Waits until a session fulfils the condition.
  bool WaitFor(const std::function<bool(const Session&)>& condition,
               std::chrono::seconds timeout = std::chrono::seconds(30)) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, timeout, [&] {
      for (const auto& [id, session] : sessions_) {
        if (condition(session)) return true;
      }
      return false;
    });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<SessionId, Session> sessions_;
};

class FakeCollector final : public v1::Ingest::Service {
 public:
  struct Behaviour {
    grpc::Status hello = grpc::Status::OK;  // answer to every hello, if not OK
    bool acknowledge = true;
    v1::Limits limits;
  };

  // Port 0: a free one.
  explicit FakeCollector(MemoryStore* store, int port = 0)
      : FakeCollector(store, port, Behaviour{}) {}
  FakeCollector(MemoryStore* store, int port, Behaviour behaviour)
      : store_(store), behaviour_(std::move(behaviour)) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:" + std::to_string(port), grpc::InsecureServerCredentials(),
                             &port_);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }
  ~FakeCollector() override { Stop(); }

  // At once: open streams break.
  void Stop() {
    if (server_ == nullptr) return;
    server_->Shutdown(std::chrono::system_clock::now());
    server_->Wait();
    server_.reset();
  }

  bool running() const { return server_ != nullptr && port_ != 0; }
  int port() const { return port_; }
  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }

  grpc::Status Stream(
      grpc::ServerContext* /*context*/,
      grpc::ServerReaderWriter<v1::CollectorMessage, v1::AgentMessage>* stream) override {
    v1::AgentMessage message;
    if (!stream->Read(&message) || !message.has_hello())
      return {grpc::StatusCode::INVALID_ARGUMENT, "hello first"};
    if (!behaviour_.hello.ok()) return behaviour_.hello;
    const auto info = FromWire(message.hello());
    if (!info.ok()) return Fail(info.status());
    SendWelcome(*info, stream);
    while (stream->Read(&message)) {
      if (message.has_goodbye()) {
        store_->Update(info->session,
                       [&](auto& s) { s.goodbye = FromWire(message.goodbye().counters()); });
        return grpc::Status::OK;
      }
      const Status stored = Store(info->session, message.batch());
      if (!stored.ok()) return Fail(stored);
      if (behaviour_.acknowledge) SendAck(info->session, stream);
    }
    return {grpc::StatusCode::CANCELLED, "the agent left without a goodbye"};
  }

 private:
  using Writer = grpc::ServerReaderWriter<v1::CollectorMessage, v1::AgentMessage>;

  static grpc::Status Fail(const Status& status) {
    return {static_cast<grpc::StatusCode>(status.code()), status.message()};
  }

  void SendWelcome(const SessionInfo& info, Writer* stream) {
    store_->Update(info.session, [&](auto& s) { s.info = info; });
    v1::CollectorMessage answer;
    answer.mutable_welcome()->set_protocol_version(kProtocolVersion);
    answer.mutable_welcome()->set_attempt(1);
    answer.mutable_welcome()->set_durable_seq(store_->Get(info.session).watermark);
    *answer.mutable_welcome()->mutable_limits() = behaviour_.limits;
    stream->Write(answer);
  }

  void SendAck(const SessionId& id, Writer* stream) {
    v1::CollectorMessage answer;
    answer.mutable_ack()->set_durable_seq(store_->Get(id).watermark);
    stream->Write(answer);
  }

  // Takes what is new; refuses gaps and definitions that do not fit.
  Status Store(const SessionId& id, const v1::Batch& wire) {
    Status status;
    store_->Update(id, [&](MemoryStore::Session& s) {
      auto batch = FromWire(wire, s.layouts);
      if (!batch.ok()) {
        s.error = batch.status().message();
        status = batch.status();
        return;
      }
      if (batch->last_seq() <= s.watermark) return;
      status = Append(*std::move(batch), &s);
      if (!status.ok()) s.error = status.message();
    });
    return status;
  }

  static Status Append(RecordBatch batch, MemoryStore::Session* s) {
    if (batch.first_seq != s->watermark + 1) return Status(Code::kFailedPrecondition, "gap");
    for (const Layout& layout : batch.layouts) {
      if (layout.id >= s->layouts.size()) s->layouts.push_back(layout);
    }
    for (const TensorDef& def : batch.activations) {
      if (def.id != s->activations.size())
        return Status(Code::kInvalidArgument, "activation ids are not dense");
      s->activations.push_back(def);
    }
    for (const std::uint32_t activation : batch.stats.activation) {
      if (activation >= s->activations.size())
        return Status(Code::kInvalidArgument, "unknown activation");
    }
    s->watermark = batch.last_seq();
    s->batches.push_back(std::move(batch));
    return Status::Ok();
  }

  MemoryStore* const store_;
  const Behaviour behaviour_;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

// All records of a kind, in order.
inline std::vector<ScalarRecord> Scalars(const MemoryStore::Session& session) {
  std::vector<ScalarRecord> all;
  for (const RecordBatch& batch : session.batches)
    all.insert(all.end(), batch.scalars.begin(), batch.scalars.end());
  return all;
}
inline std::vector<EventRecord> Events(const MemoryStore::Session& session) {
  std::vector<EventRecord> all;
  for (const RecordBatch& batch : session.batches)
    all.insert(all.end(), batch.events.begin(), batch.events.end());
  return all;
}
inline std::vector<StepRecord> Steps(const MemoryStore::Session& session) {
  std::vector<StepRecord> all;
  for (const RecordBatch& batch : session.batches)
    all.insert(all.end(), batch.steps.begin(), batch.steps.end());
  return all;
}
inline std::size_t Observations(const MemoryStore::Session& session) {
  std::size_t n = 0;
  for (const RecordBatch& batch : session.batches) n += batch.stats.size();
  return n;
}

}  // namespace statcollect::testing

#endif  // STATCOLLECT_TESTS_SUPPORT_FAKE_COLLECTOR_H_
