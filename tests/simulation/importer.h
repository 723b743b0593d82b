// `statctl move import spill` in a simulated world: the product's reader of spill files, and a
// simple sender that begins with the file's first record each time, whatever the collector has.
#ifndef STATCOLLECT_TESTS_SIMULATION_IMPORTER_H_
#define STATCOLLECT_TESTS_SIMULATION_IMPORTER_H_

#include <cstdint>
#include <optional>
#include <string>

#include "agent/export/transport.h"
#include "common/status.h"
#include "tests/simulation/network.h"
#include "tests/simulation/threads.h"

namespace statcollect::client {
class SpillReader;
}

namespace statcollect::simulation {

class Importer final : public StreamReceiver {
 public:
  Importer(Network& network, Threads& threads) : network_(network), threads_(threads) {}

  // Sends the file and removes it. kUnavailable: an agent has it, or there is none any more.
  Status Run(const std::string& path, SessionId* session);

 private:
  void OnWelcome(const Welcome& welcome) override;
  void OnAck(std::uint64_t durable_seq) override;
  void OnEnd() override;
  Status SendOnce(client::SpillReader& file);

  Network& network_;
  Threads& threads_;
  bool welcomed_ = false, ended_ = false;
  std::uint64_t durable_ = 0;
};

}  // namespace statcollect::simulation

#endif  // STATCOLLECT_TESTS_SIMULATION_IMPORTER_H_
