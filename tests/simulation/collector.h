// The collector's machine in a simulated world: its store, and one process after the other that
// serves it. A process is made of the product's registry, committer, admission worker and streams;
// a killed one goes on to its end without effect, so that nothing of it is left.
#ifndef STATCOLLECT_TESTS_SIMULATION_COLLECTOR_H_
#define STATCOLLECT_TESTS_SIMULATION_COLLECTOR_H_

#include <cstdint>
#include <memory>
#include <random>
#include <string>

#include "common/clock.h"
#include "server/store/store.h"
#include "tests/simulation/history.h"
#include "tests/simulation/network.h"
#include "tests/simulation/threads.h"
#include "tests/support/fake_store.h"

namespace statcollect::testing {
class SimulatedDisk;
}
namespace rocksdb {
class Env;
}

namespace statcollect::simulation {

// What is left when a process ends: the store's memory model, or RocksDB over a disk that forgets
// what was not synced.
class Machine {
 public:
  Machine(bool real_store, std::uint64_t seed);
  ~Machine();

  // Starts and ends RocksDB. Not during a simulated step.
  Status Open();
  void Close();
  Store* store() { return opened_ ? opened_.get() : model_.get(); }
  testing::FakeStore* model() { return model_.get(); }
  // The machine loses its power at once, or in the midst of a write soon.
  void CutPower();
  void CutPowerSoon();
  bool powered() const;
  void PowerOn();

 private:
  std::mt19937_64 random_;
  std::unique_ptr<testing::FakeStore> model_;
  std::shared_ptr<testing::SimulatedDisk> disk_;
  std::shared_ptr<rocksdb::Env> env_;
  std::string directory_;
  std::unique_ptr<Store> opened_;
};

class Collector {
 public:
  Collector(Machine& machine, Network& network, Threads& threads, History& history)
      : machine_(machine), network_(network), threads_(threads), history_(history) {}

  bool up() const { return process_ != nullptr; }
  bool settled() const { return ending_ == 0; }
  std::string State();    // in words
  void Start();           // a process; checks what the store has
  void Kill(bool power);  // SIGKILL, or the machine loses its power
  void Drain();           // SIGTERM
  void DeleteRun(const std::string& run);
  std::uint64_t commits() const { return commits_; }
  std::uint64_t starts() const { return starts_; }

 private:
  class Process;
  void Bury(std::shared_ptr<Process> process);

  Machine& machine_;
  Network& network_;
  Threads& threads_;
  History& history_;
  std::shared_ptr<Process> process_;
  std::weak_ptr<Process> last_;  // that was started, while anything is left of it
  int ending_ = 0;
  std::uint64_t commits_ = 0, starts_ = 0;
};

}  // namespace statcollect::simulation

#endif  // STATCOLLECT_TESTS_SIMULATION_COLLECTOR_H_
