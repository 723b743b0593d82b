// A simulated world: a collector's machine, the agents of some launches, the network between them,
// and what befalls them, all from one seed. After every step of the scheduler the rules of
// history.h hold; at the end the faults stop, every agent that may go on must come to its end, and
// the store holds what was acknowledged.
#ifndef STATCOLLECT_TESTS_SIMULATION_WORLD_H_
#define STATCOLLECT_TESTS_SIMULATION_WORLD_H_

#include <cstdint>
#include <string>
#include <vector>

namespace statcollect::simulation {

struct WorldPlan {
  std::uint64_t seed = 0;
  bool real_store = false;  // RocksDB over the simulated disk, else the model in memory
};

// What befalls a world, in the order of time.
enum class Blow {
  kKillCollector,
  kCutPower,
  kCutPowerInWrite,
  kDrainCollector,
  kResetConnection,
  kSilenceConnection,
  kPartition,
  kSlowNetwork,
  kKillAgent,
  kLaunchAgain,
  kDiskFull,
  kDeleteRun,
  kImport,
  kJumpClock,
};
inline constexpr int kBlows = 14;

struct Event {
  std::int64_t at_millis = 0;
  Blow blow = Blow::kKillCollector;
  std::uint64_t choice = 0;     // of the agent or the run
  std::int64_t for_millis = 0;  // until it is over
};

// The events of a world, by its seed.
std::vector<Event> MakeEvents(const WorldPlan& plan);
std::string Describe(const Event& event);

struct Outcome {
  std::string failure;  // empty: every rule held
  std::uint64_t steps = 0, records = 0, messages = 0, broken = 0, commits = 0, starts = 0,
                agents = 0;
  double simulated_seconds = 0;
};

Outcome Play(const WorldPlan& plan, const std::vector<Event>& events);

// The fewest events, as far as leaving out one or several of them finds it, with which the world
// still fails.
std::vector<Event> Minimise(const WorldPlan& plan, std::vector<Event> events, int attempts_max);

}  // namespace statcollect::simulation

#endif  // STATCOLLECT_TESTS_SIMULATION_WORLD_H_
