// Ends a process whose orderly end takes too long: a query that does not notice its cancellation,
// or a disk that hangs, must not keep a service from stopping. What was acknowledged is stored, so
// this is as safe as a kill (docs/reliability.md).
#ifndef STATCOLLECT_SERVER_DAEMON_LAST_RESORT_H_
#define STATCOLLECT_SERVER_DAEMON_LAST_RESORT_H_

#include <chrono>

namespace statcollect {

// After a signal. With what a supervisor needs to notice the end, less than 10 s.
inline constexpr std::chrono::milliseconds kStopGrace{9'000};
// Of a process that was ended so.
inline constexpr int kExitUnfinished = 3;

// From now on the process lasts no longer than this: then it says what it was waiting for, and ends
// with kExitUnfinished. Takes SIGALRM; needs no thread and no memory.
void EndWithin(std::chrono::milliseconds grace);

// What the process is busy with from now on, for that sentence. `what`: static.
void NowWaitingFor(const char* what);

}  // namespace statcollect

#endif  // STATCOLLECT_SERVER_DAEMON_LAST_RESORT_H_
