// Runs what may hang, on a thread that can be left behind.
#ifndef STATCOLLECT_AGENT_BOUNDED_RUN_H_
#define STATCOLLECT_AGENT_BOUNDED_RUN_H_

#include <chrono>
#include <cstdint>
#include <functional>

namespace statcollect {

// Runs `work` in another thread and waits until `deadline`, then for as long as progress() changes
// at least every `patience`. Returns whether it has ended. If not, the thread is left behind:
// everything that `work` uses must live until the process ends. If no thread can be created, `work`
// runs in this one.
bool RunBounded(std::function<void()> work, std::chrono::steady_clock::time_point deadline,
                std::chrono::milliseconds patience, const std::function<std::uint64_t()>& progress);

}  // namespace statcollect

#endif  // STATCOLLECT_AGENT_BOUNDED_RUN_H_
