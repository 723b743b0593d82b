// Runs what may hang, on a thread that can be left behind.
#ifndef STATCOLLECT_AGENT_BOUNDED_RUN_H_
#define STATCOLLECT_AGENT_BOUNDED_RUN_H_

#include <chrono>
#include <cstdint>
#include <functional>

namespace statcollect {

// Whether `work` has ended: waits for it until `deadline`, and then as long as progress() changes at least every
// `patience`. If false, the work goes on, or hangs on, in a thread that nobody waits for: everything it uses must
// stay until the process has ended. Runs `work` here if there can be no more threads.
bool RunBounded(std::function<void()> work, std::chrono::steady_clock::time_point deadline,
                std::chrono::milliseconds patience, const std::function<std::uint64_t()>& progress);

}  // namespace statcollect

#endif  // STATCOLLECT_AGENT_BOUNDED_RUN_H_
