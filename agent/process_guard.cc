#include "agent/process_guard.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <vector>

#include "common/thread_annotations.h"

namespace statcollect {
namespace {

std::atomic<std::uint64_t> fork_generation{0};

void CountFork() { fork_generation.fetch_add(1); }

// Never destroyed: agents may outlive static destructors.
struct Agents {
  Mutex mutex;
  std::vector<ClosedAtExit*> list;
  std::uint64_t generation = ForkGeneration();
};

Agents& LiveAgents() {
  static Agents* const agents = new Agents;
  return *agents;
}

void CloseAll() {
  Agents& agents = LiveAgents();
  if (agents.generation != ForkGeneration()) return;
  std::vector<ClosedAtExit*> list;
  {
    MutexLock lock(agents.mutex);
    list = agents.list;
  }
  for (ClosedAtExit* agent : list) agent->CloseAtExit();
}

}  // namespace

std::uint64_t ForkGeneration() noexcept {
  static const int registered = pthread_atfork(nullptr, nullptr, CountFork);
  (void)registered;
  return fork_generation.load();
}

void AddClosedAtExit(ClosedAtExit* agent) {
  static const int registered = std::atexit(CloseAll);
  (void)registered;
  Agents& agents = LiveAgents();
  MutexLock lock(agents.mutex);
  agents.list.push_back(agent);
}

void RemoveClosedAtExit(ClosedAtExit* agent) {
  Agents& agents = LiveAgents();
  MutexLock lock(agents.mutex);
  std::erase(agents.list, agent);
}

}  // namespace statcollect
