// Runs what may hang, on a thread that can be left behind.
#ifndef STATCOLLECT_AGENT_BOUNDED_RUN_H_
#define STATCOLLECT_AGENT_BOUNDED_RUN_H_

#include <chrono>
#include <cstdint>
#include <functional>

namespace statcollect {

// Whether `work` has ended: waits for it until `deadline`, and then as long as progress() changes at least every
// `patience`. If false, the work continues, or hangs, in a thread that is not waited for: everything it uses
// must live until the process ends. Runs `work` in this thread if no thread can be created.
bool RunBounded(std::function<void()> work, std::chrono::steady_clock::time_point deadline,
                std::chrono::milliseconds patience, const std::function<std::uint64_t()>& progress);

}  // namespace statcollect

#endif  // STATCOLLECT_AGENT_BOUNDED_RUN_H_
