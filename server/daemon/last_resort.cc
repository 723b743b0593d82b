#include "server/daemon/last_resort.h"

#include <atomic>
#include <csignal>
#include <cstddef>

#include <poll.h>
#include <sys/time.h>
#include <unistd.h>

namespace statcollect {
namespace {

std::atomic<const char*> waiting_for{"its work"};
static_assert(std::atomic<const char*>::is_always_lock_free, "a signal handler reads it");

// Only what a signal handler may call. A standard error that nobody reads must not hold the end up.
void End(int /*signal*/) {
  char line[512];
  std::size_t length = 0;
  const auto add = [&](const char* text) {
    while (*text != '\0' && length < sizeof line) line[length++] = *text++;
  };
  add("statcollectord: stopping took too long; it was waiting for ");
  add(waiting_for.load());
  add("; ended without it: what was acknowledged is stored, agents send the rest again\n");
  pollfd writable{.fd = STDERR_FILENO, .events = POLLOUT, .revents = 0};
  if (poll(&writable, 1, 0) == 1) {
    const ssize_t written = write(STDERR_FILENO, line, length);
    static_cast<void>(written);
  }
  _exit(kExitUnfinished);
}

}  // namespace

void EndWithin(std::chrono::milliseconds grace) {
  struct sigaction action {};
  action.sa_handler = End;
  sigaction(SIGALRM, &action, nullptr);
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(grace);
  itimerval timer{};
  timer.it_value.tv_sec = static_cast<time_t>(seconds.count());
  timer.it_value.tv_usec = static_cast<suseconds_t>(
      std::chrono::duration_cast<std::chrono::microseconds>(grace - seconds).count());
  setitimer(ITIMER_REAL, &timer, nullptr);
}

void NowWaitingFor(const char* what) { waiting_for = what; }

}  // namespace statcollect
