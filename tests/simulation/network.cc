#include "tests/simulation/network.h"

#include <utility>

#include "agent/export/wire.h"

namespace statcollect::simulation {
namespace {

constexpr std::size_t kOnTheWayMax = 4;  // messages; then a sender waits
constexpr std::chrono::seconds kConnectTimeout{10};

Status Unavailable(const char* text) { return {Code::kUnavailable, text}; }

class AgentStream final : public Stream {
 public:
  explicit AgentStream(std::shared_ptr<Connection> connection)
      : connection_(std::move(connection)) {}
  ~AgentStream() override {
    if (finished_) return;
    connection_->CancelByAgent();
    (void)Finish();
  }
  bool SendHello(const SessionInfo& session, std::uint64_t first_unacked_seq) override {
    if (!connection_->SendUp(wire::EncodeHello(session, first_unacked_seq))) return false;
    connection_->Connect();
    return true;
  }
  bool Send(const EncodedBatch& batch) override {
    return connection_->SendUp(wire::EncodeBatch(batch));
  }
  bool SendGoodbye(const AgentCounters& counters) override {
    if (!connection_->SendUp(wire::EncodeGoodbye(counters))) return false;
    connection_->CloseUp();
    return true;
  }
  void Cancel() override { connection_->CancelByAgent(); }
  Status Finish() override {
    finished_ = true;
    return connection_->AwaitEnd();
  }

 private:
  const std::shared_ptr<Connection> connection_;
  bool finished_ = false;
};

class AgentTransport final : public Transport {
 public:
  AgentTransport(Network& network, const SessionId& session, std::uint32_t agent)
      : network_(network), session_(session), agent_(agent) {}
  std::unique_ptr<Stream> Open(StreamReceiver* receiver) override {
    return std::make_unique<AgentStream>(
        std::make_shared<Connection>(network_, session_, agent_, receiver));
  }

 private:
  Network& network_;
  const SessionId session_;
  const std::uint32_t agent_;
};

}  // namespace

std::unique_ptr<Transport> Network::MakeTransport(const SessionId& session, std::uint32_t agent) {
  return std::make_unique<AgentTransport>(*this, session, agent);
}

Nanos Network::Between(std::int64_t low_millis, std::int64_t high_millis) {
  const auto span = static_cast<std::uint64_t>(high_millis - low_millis) * 1'000'000 + 1;
  return Nanos(low_millis * 1'000'000 + static_cast<std::int64_t>(threads.random()() % span));
}

Nanos Network::Latency() {
  return slow ? Between(50, 3000) : Between(0, threads.random()() % 16 == 0 ? 200 : 4);
}

void Network::Reset(std::uint32_t agent) {
  for (const auto& [number, connection] : connections_) {
    if (connection->agent() == agent) connection->Reset();
  }
}

void Network::Silence(std::uint32_t agent) {
  for (const auto& [number, connection] : connections_) {
    if (connection->agent() == agent) connection->Silence();
  }
}

void Network::ResetAll() {
  for (const auto& [number, connection] : connections_) connection->Reset();
}

void Network::SilenceAll() {
  for (const auto& [number, connection] : connections_) connection->Silence();
}

Connection::Connection(Network& network, const SessionId& session, std::uint32_t agent,
                       StreamReceiver* receiver)
    : network_(network),
      number_(++network.opened_),
      session_(session),
      agent_(agent),
      receiver_(receiver) {
  network_.connections_[number_] = this;
}

Connection::~Connection() { network_.connections_.erase(number_); }

Nanos Connection::Due(Nanos* last) {
  *last = std::max(*last, network_.threads.now() + network_.Latency());
  return *last - network_.threads.now();
}

void Connection::Connect() {
  reading_ = true;
  network_.threads.Spawn([self = shared_from_this()] { self->ReadAll(); });
  network_.threads.After(network_.Latency(), [self = shared_from_this()] { self->Establish(); });
}

void Connection::Establish() {
  if (end_) return;
  if (network_.unreachable || silent_) {
    network_.threads.After(kConnectTimeout, [self = shared_from_this()] {
      self->EndAgent(Unavailable("failed to connect: timed out"));
    });
    return;
  }
  if (network_.listener == nullptr || network_.dead.contains(agent_))
    return EndAgent(Unavailable("failed to connect: connection refused"));
  server_ = std::make_shared<ServerEnd>(shared_from_this(), *network_.listener);
  established_ = true;
  server_->Start();
  while (!unsent_.empty()) {
    std::string bytes = std::move(unsent_.front());
    unsent_.pop_front();
    Arrive(std::move(bytes));
  }
}

bool Connection::SendUp(std::string bytes) {
  while (!end_ && on_the_way_ >= kOnTheWayMax) network_.threads.Park(this);
  if (end_) return false;
  ++on_the_way_;
  ++network_.messages;
  if (established_) {
    Arrive(std::move(bytes));
  } else {
    unsent_.push_back(std::move(bytes));
  }
  return true;
}

void Connection::Arrive(std::string bytes) {
  way_up_.push_back(std::move(bytes));
  network_.threads.After(Due(&last_up_), [self = shared_from_this()] {
    std::string oldest = std::move(self->way_up_.front());
    self->way_up_.pop_front();
    if (self->cut_up_ || self->silent_up_ || self->server_ == nullptr) return;
    if (oldest.empty()) {
      self->server_->HalfClose();
    } else {
      self->server_->Deliver(std::move(oldest));
    }
  });
}

void Connection::Taken() {
  --on_the_way_;
  network_.threads.Wake(this);
}

void Connection::Push(Down message) {
  ++network_.messages;
  way_down_.push_back(std::move(message));
  network_.threads.After(Due(&last_down_), [self = shared_from_this()] {
    Down oldest = std::move(self->way_down_.front());
    self->way_down_.pop_front();
    if (self->end_ || self->cut_ || self->silent_) return;
    self->arrived_.push_back(std::move(oldest));
    self->network_.threads.Wake(self.get());
  });
}

void Connection::SendDown(std::string bytes) { Push({std::move(bytes), std::nullopt}); }
void Connection::SendStatus(const Status& status) { Push({{}, status}); }

// As GrpcStream's reader.
void Connection::ReadAll() {
  while (true) {
    while (arrived_.empty() && !end_) network_.threads.Park(this);
    if (arrived_.empty()) break;
    const Down message = std::move(arrived_.front());
    arrived_.pop_front();
    if (message.status) {
      EndAgent(*message.status);
      continue;
    }
    const auto decoded = wire::Decode(message.bytes);
    if (!decoded.ok()) {
      network_.history.Fail("the agent cannot read the collector's message: " +
                            decoded.status().message());
      break;
    }
    if (decoded->welcome) receiver_->OnWelcome(*decoded->welcome);
    if (decoded->ack) receiver_->OnAck(*decoded->ack);
    if (decoded->directive) receiver_->OnDirective(*decoded->directive);
  }
  receiver_->OnEnd();
  reader_done_ = true;
  network_.threads.Wake(this);
}

void Connection::EndAgent(const Status& status) {
  if (end_) return;
  end_ = status;
  network_.threads.Wake(this);
}

Status Connection::AwaitEnd() {
  if (!reading_) {
    receiver_->OnEnd();
    return end_.value_or(Status(Code::kCancelled, "cancelled"));
  }
  while (!reader_done_) network_.threads.Park(this);
  // Its last messages may still be on their way up; nobody speaks to the agent any more.
  network_.connections_.erase(number_);
  return *end_;
}

void Connection::CancelByAgent() {
  if (end_) return;
  EndAgent({Code::kCancelled, "cancelled"});
  if (server_ == nullptr) return;
  const Nanos after = silent_ ? network_.Between(5'000, 60'000) : Due(&last_up_);
  network_.threads.After(after, [self = shared_from_this()] { self->BreakServer(); });
}

void Connection::BreakServer() {
  if (server_ != nullptr) server_->Break();
}

void Connection::Reset() {
  if (end_ || !established_) return;
  ++network_.broken;
  cut_ = true;
  cut_up_ = network_.threads.random()() % 2 == 0;
  network_.threads.After(network_.Latency(), [self = shared_from_this()] {
    self->EndAgent(Unavailable("connection reset by peer"));
  });
  // After what still arrives.
  network_.threads.After(Due(&last_up_), [self = shared_from_this()] { self->BreakServer(); });
}

void Connection::Silence() {
  if (silent_) return;
  ++network_.broken;
  silent_ = true;
  silent_up_ = network_.threads.random()() % 2 == 0;
  network_.threads.After(network_.Between(10'000, 30'000), [self = shared_from_this()] {
    self->EndAgent(Unavailable("keepalive watchdog timeout"));
  });
  if (server_ == nullptr) return;
  network_.threads.After(network_.Between(5'000, 90'000),
                         [self = shared_from_this()] { self->BreakServer(); });
}

void ServerEnd::Start() {
  stream_ = std::make_shared<IngestStream>(listener_.context(), this);
  listener_.Add(shared_from_this());
  stream_->Start();
}

void ServerEnd::Deliver(std::string bytes) {
  if (broken_) return;
  inbox_.push_back(std::move(bytes));
  Pump();
}

void ServerEnd::HalfClose() {
  half_closed_ = true;
  Pump();
}

void ServerEnd::StartRead() {
  read_wanted_ = true;
  Pump();
}

void ServerEnd::Pump() {
  if (!read_wanted_ || (inbox_.empty() && !half_closed_ && !broken_)) return;
  read_wanted_ = false;
  ++callbacks_;
  if (inbox_.empty() || broken_) {
    threads().Spawn([self = shared_from_this()] {
      self->stream_->OnReadsDone();
      --self->callbacks_;
      self->Check();
    });
    return;
  }
  threads().Spawn([self = shared_from_this(), bytes = std::move(inbox_.front())] {
    if (!self->request_.ParseFromString(bytes))
      self->connection_->network().history.Fail("the collector cannot parse the agent's message");
    self->stream_->OnMessage(&self->request_);
    --self->callbacks_;
    self->Check();
  });
  inbox_.pop_front();
  connection_->Taken();
}

void ServerEnd::StartWrite(v1::CollectorMessage message) {
  History& history = connection_->network().history;
  if (writing_ || finished_)
    history.Fail("the collector writes while it is writing, or after the end");
  writing_ = true;
  ++callbacks_;
  if (!killed_) {
    const std::uint64_t told =
        message.has_welcome() ? message.welcome().durable_seq() : message.ack().durable_seq();
    if (message.has_welcome() || message.has_ack()) {
      history.CheckTold(connection_->session(), told);
      if (told < told_) history.Fail("an acknowledgement that goes back");
      told_ = told;
    }
    connection_->SendDown(message.SerializeAsString());
  }
  threads().After(connection_->network().Between(0, 2), [self = shared_from_this()] {
    self->writing_ = false;
    self->stream_->OnWriteDone(!self->broken_);
    --self->callbacks_;
    self->Check();
  });
}

void ServerEnd::Finish(const Status& status) {
  if (finished_ || writing_)
    connection_->network().history.Fail("a stream that is finished twice, or during a write");
  finished_ = true;
  if (!killed_) connection_->SendStatus(status);
  if (read_wanted_) {  // the pending read fails
    broken_ = true;
    Pump();
  }
  ++callbacks_;
  threads().Spawn([self = shared_from_this()] {
    --self->callbacks_;
    self->Check();
  });
}

void ServerEnd::Break() {
  if (broken_ || finished_) return;
  broken_ = true;
  ++callbacks_;
  threads().Spawn([self = shared_from_this()] {
    self->stream_->OnCancel();
    --self->callbacks_;
    self->Check();
  });
  Pump();
}

void ServerEnd::Kill() {
  killed_ = true;
  Break();
}

void ServerEnd::Check() {
  if (!finished_ || callbacks_ > 0 || gone_) return;
  gone_ = true;
  connection_->ForgetServer();
  listener_.Remove(shared_from_this());
}

}  // namespace statcollect::simulation
