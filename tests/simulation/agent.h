// One process of a training in a simulated world: the product's exporter, send window, ledger and
// spill file, and a model of what is before them (the batcher and the training).
#ifndef STATCOLLECT_TESTS_SIMULATION_AGENT_H_
#define STATCOLLECT_TESTS_SIMULATION_AGENT_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "agent/export/exporter.h"
#include "common/clock.h"
#include "tests/simulation/history.h"
#include "tests/simulation/network.h"
#include "tests/simulation/threads.h"

namespace statcollect::simulation {

struct AgentPlan {
  SessionInfo session;
  std::uint32_t number = 0;  // of the agent in the world
  std::uint64_t batches = 0;
  std::string spill;              // folder; empty: none
  std::chrono::seconds close{0};  // how long it waits for its end
};

class Agent {
 public:
  Agent(AgentPlan plan, Network& network, Threads& threads, History& history);

  void Start();
  // SIGKILL: what it does from now on has no effect.
  void Kill();
  bool done() const { return done_; }
  bool killed() const { return killed_; }
  const AgentPlan& plan() const { return plan_; }
  const Status& result() const { return result_; }
  // Whether it was told for good that it cannot be recorded.
  bool refused() const { return refused_; }
  // Records that it left in its spill file.
  std::uint64_t kept() const { return session_kept_; }
  void Check();

 private:
  void Run();
  void Submit();
  std::string SpillPath() const;
  void RestoreSpill();

  const AgentPlan plan_;
  Network& network_;
  Threads& threads_;
  History& history_;
  const SystemClock clock_;
  Ledger ledger_;
  LogLimiter log_;
  std::unique_ptr<Transport> transport_;
  std::unique_ptr<Exporter> exporter_;
  std::uint64_t step_ = 0, submitted_ = 0;
  bool done_ = false, killed_ = false, refused_ = false, started_ = false;
  Status result_;
  std::uint64_t session_kept_ = 0;
  std::optional<std::string> spill_;  // the file at the moment of the kill
};

}  // namespace statcollect::simulation

#endif  // STATCOLLECT_TESTS_SIMULATION_AGENT_H_
