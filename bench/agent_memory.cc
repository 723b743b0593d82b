// Memory that an agent adds to its process while it observes as fast as it can. Needs a collector
// that takes its hello; agent_memory.py starts one, stops it when "ready" is printed, and runs
// this. Target P12: 64 MiB.
//
//   statagent_memory_bench HOST:PORT SECONDS [SPILL_DIR]
//
// Prints "ready" once it is welcomed, waits for a line on standard input, observes, and prints as
// JSON: what it had resident before the agent started, the most it added since, and the agent's
// counters.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

#include "statagent/agent.h"

namespace {

using statagent::Agent;
using std::chrono::steady_clock;

constexpr int kActivations = 1000;  // a step
constexpr std::int64_t kElements = 64;

struct Resident {
  std::int64_t all = 0, anonymous = 0;  // bytes; all holds the library's own pages, too
};

Resident ReadResident() {
  Resident found;
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    std::istringstream fields(line);
    std::string name;
    std::int64_t kib = 0;
    fields >> name >> kib;
    if (name == "VmRSS:") found.all = kib << 10;
    if (name == "RssAnon:") found.anonymous = kib << 10;
  }
  return found;
}

[[noreturn]] void Fail(const std::string& what, const statagent::Status& status) {
  std::cerr << "statagent_memory_bench: " << what << ": " << status.message() << '\n';
  std::exit(1);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3 || argc > 4) {
    std::cerr << "usage: statagent_memory_bench HOST:PORT SECONDS [SPILL_DIR]\n";
    return 2;
  }
  std::vector<float> values(kElements, 0.5F);
  const std::vector<std::int64_t> shape{kElements};
  const statagent::TensorView view{
      .data = values.data(), .dtype = statagent::DType::kF32, .shape = shape};
  if (!statagent::Compute(view).ok())
    std::abort();  // what the engine alone needs is not the agent's
  const Resident before = ReadResident();

  auto agent = Agent::Start({.run = "memory",
                             .collector = argv[1],
                             .if_exists = "append",
                             .required = true,
                             .spill_dir = argc == 4 ? argv[3] : "",
                             .spill_limit = "4GiB"});
  if (!agent.ok()) Fail("start", agent.status());
  std::cout << "ready" << std::endl;
  std::string line;
  std::getline(std::cin, line);

  std::vector<std::uint32_t> handles;
  for (int i = 0; i < kActivations; ++i) {
    const auto handle =
        (*agent)->Intern({.name = "blocks." + std::to_string(i) + ".mlp.fc1", .call = 0});
    if (!handle.ok()) Fail("intern", handle.status());
    handles.push_back(*handle);
  }
  Resident most;
  std::uint64_t observed = 0;
  const auto end = steady_clock::now() + std::chrono::seconds(std::atoi(argv[2]));
  while (steady_clock::now() < end) {
    values[0] += 0.001F;
    for (const std::uint32_t handle : handles) {
      if (const auto status = (*agent)->Observe(handle, view); !status.ok())
        Fail("observe", status);
    }
    observed += handles.size();
    (*agent)->EndStep();
    const Resident now = ReadResident();
    most = {std::max(most.all, now.all), std::max(most.anonymous, now.anonymous)};
  }
  const statagent::Counters counters = (*agent)->counters();
  std::uint64_t dropped = 0;
  for (const auto& [cause, lost] : counters.dropped) dropped += lost;
  std::cout << "{\"before\": " << before.all << ", \"added\": " << most.all - before.all
            << ", \"added_anonymous\": " << most.anonymous - before.anonymous
            << ", \"observed\": " << observed << ", \"acked\": " << counters.acked
            << ", \"pending\": " << counters.pending << ", \"spilled\": " << counters.spilled
            << ", \"dropped\": " << dropped << "}" << std::endl;
  std::_Exit(0);  // not to wait for a collector that is stopped
}
