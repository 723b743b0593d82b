// What an agent must know about the process that it lives in: forks, and the process's exit.
#ifndef STATCOLLECT_AGENT_PROCESS_GUARD_H_
#define STATCOLLECT_AGENT_PROCESS_GUARD_H_

#include <cstdint>

namespace statcollect {

// How often this process and its ancestors were forked since the first call in any of them. An agent whose
// process has another number than it had at its start is a copy in a child: its threads do not exist and its
// mutexes may be held for ever. Async-signal-safe after the first call.
std::uint64_t ForkGeneration() noexcept;

// Closed when the process exits, unless it is removed before. Not closed in forked children.
class ClosedAtExit {
 public:
  virtual ~ClosedAtExit() = default;
  virtual void CloseAtExit() noexcept = 0;
};

// Call Add when everything that the agent uses has been initialised: handlers run in reverse order.
void AddClosedAtExit(ClosedAtExit* agent);
void RemoveClosedAtExit(ClosedAtExit* agent);

}  // namespace statcollect

#endif  // STATCOLLECT_AGENT_PROCESS_GUARD_H_
