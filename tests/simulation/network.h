// The network between agents and the collector: streams as gRPC gives them to both, over
// connections that delay, break, and fall silent. What is modelled is gRPC and TCP; what runs on
// both sides is the product's.
//
// A stream keeps the order of its messages in each direction; nothing is ordered between streams,
// or between what the two ends notice of a broken connection.
#ifndef STATCOLLECT_TESTS_SIMULATION_NETWORK_H_
#define STATCOLLECT_TESTS_SIMULATION_NETWORK_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "agent/export/transport.h"
#include "server/ingest/ingest_stream.h"
#include "tests/simulation/history.h"
#include "tests/simulation/threads.h"

namespace statcollect::simulation {

class ServerEnd;

// What a collector's process offers to the network.
class Listener {
 public:
  virtual ~Listener() = default;
  virtual const StreamContext& context() = 0;
  virtual void Add(const std::shared_ptr<ServerEnd>& end) = 0;
  virtual void Remove(const std::shared_ptr<ServerEnd>& end) = 0;
};

class Connection;

// The state of the network, changed by the world's events.
class Network {
 public:
  Network(Threads& threads, History& history) : threads(threads), history(history) {}

  std::unique_ptr<Transport> MakeTransport(const SessionId& session, std::uint32_t agent);
  // Both ends notice soon, in any order; what is on its way to the collector may still arrive.
  void Reset(std::uint32_t agent);
  // Nothing arrives any more, in both directions or only on the way down; each end notices by its
  // keepalive.
  void Silence(std::uint32_t agent);
  void SilenceAll();
  void ResetAll();
  Nanos Latency();
  Nanos Between(std::int64_t low_millis, std::int64_t high_millis);

  Threads& threads;
  History& history;
  Listener* listener = nullptr;  // nullptr: nobody listens, and connections are refused
  bool unreachable = false;      // new connections time out
  bool slow = false;
  std::set<std::uint32_t> dead;  // agents that were killed
  std::uint64_t messages = 0, broken = 0;

 private:
  friend class Connection;
  std::map<std::uint64_t, Connection*> connections_;  // in the order in which they were opened
  std::uint64_t opened_ = 0;
};

// One stream's connection.
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(Network& network, const SessionId& session, std::uint32_t agent,
             StreamReceiver* receiver);
  ~Connection();

  // --- the agent's end
  bool SendUp(std::string bytes);
  void CloseUp() { (void)SendUp({}); }
  void Connect();
  void CancelByAgent();
  Status AwaitEnd();
  void EndAgent(const Status& status);

  // --- the collector's end
  void SendDown(std::string bytes);
  void SendStatus(const Status& status);
  void Taken();  // one message was read
  void ForgetServer() { server_ = nullptr; }

  // --- faults
  void Reset();
  void Silence();

  Network& network() { return network_; }
  const SessionId& session() const { return session_; }
  std::uint32_t agent() const { return agent_; }
  bool silent() const { return silent_; }

 private:
  struct Down {
    std::string bytes;
    std::optional<Status> status;
  };

  void Establish();
  void BreakServer();
  void Arrive(std::string bytes);
  void ReadAll();
  Nanos Due(Nanos* last);
  void Push(Down message);

  Network& network_;
  const std::uint64_t number_;
  const SessionId session_;
  const std::uint32_t agent_;
  StreamReceiver* const receiver_;
  std::shared_ptr<ServerEnd> server_;
  std::deque<std::string> unsent_;  // before the connection is made
  std::size_t on_the_way_ = 0;      // messages of the agent that the collector has not read
  bool established_ = false, cut_ = false, cut_up_ = false, silent_ = false, silent_up_ = false,
       reading_ = false;
  Nanos last_up_{}, last_down_{};
  // Sent and not arrived. Whichever thread is the first to carry a message on takes the oldest one.
  std::deque<std::string> way_up_;
  std::deque<Down> way_down_;
  std::deque<Down> arrived_;
  std::optional<Status> end_;  // at the agent
  bool reader_done_ = false;
};

// The collector's end, between gRPC's place and an IngestStream.
class ServerEnd final : public StreamTransport, public std::enable_shared_from_this<ServerEnd> {
 public:
  ServerEnd(std::shared_ptr<Connection> connection, Listener& listener)
      : connection_(std::move(connection)), listener_(listener) {}

  void Start();
  void Deliver(std::string bytes);
  void HalfClose();
  void Break();
  // The process was killed: what it says from now on is not sent.
  void Kill();
  std::shared_ptr<IngestStream> stream() { return stream_; }

  // --- StreamTransport
  void StartRead() override;
  void StartWrite(v1::CollectorMessage message) override;
  void Finish(const Status& status) override;

 private:
  void Pump();
  void Check();

  Threads& threads() { return connection_->network().threads; }

  const std::shared_ptr<Connection> connection_;
  Listener& listener_;
  std::shared_ptr<IngestStream> stream_;
  v1::AgentMessage request_;
  std::deque<std::string> inbox_;
  int callbacks_ = 0;  // spawned and not returned
  bool read_wanted_ = false, half_closed_ = false, broken_ = false, killed_ = false,
       finished_ = false, gone_ = false;
  bool writing_ = false;
  std::uint64_t told_ = 0;
};

}  // namespace statcollect::simulation

#endif  // STATCOLLECT_TESTS_SIMULATION_NETWORK_H_
