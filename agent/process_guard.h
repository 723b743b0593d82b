// Tells the agent about forks and about the exit of its process.
#ifndef STATCOLLECT_AGENT_PROCESS_GUARD_H_
#define STATCOLLECT_AGENT_PROCESS_GUARD_H_

#include <cstdint>

namespace statcollect {

// The number of forks between the first call in any ancestor and this process. If the number
// differs from the one at the agent's start, the agent is a copy in a forked child: its threads do
// not exist, and its mutexes may be held forever. Async-signal-safe after the first call.
std::uint64_t ForkGeneration() noexcept;

// Closed when the process exits, unless it is removed before. Not closed in forked children.
class ClosedAtExit {
 public:
  virtual ~ClosedAtExit() = default;
  virtual void CloseAtExit() noexcept = 0;
};

// Call Add after everything that the agent uses has been initialised: handlers run in reverse
// order.
void AddClosedAtExit(ClosedAtExit* agent);
void RemoveClosedAtExit(ClosedAtExit* agent);

}  // namespace statcollect

#endif  // STATCOLLECT_AGENT_PROCESS_GUARD_H_
