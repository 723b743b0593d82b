// Blocks signals in threads that run in other people's processes.
#ifndef STATCOLLECT_COMMON_SIGNALS_BLOCKED_H_
#define STATCOLLECT_COMMON_SIGNALS_BLOCKED_H_

#include <pthread.h>
#include <signal.h>

namespace statcollect {

// During its lifetime the calling thread blocks all signals, except those of its own faults, which
// must end the process as usual, and a profiler's.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t blocked;
    sigfillset(&blocked);
    for (const int heard : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT, SIGSYS, SIGPROF}) {
      sigdelset(&blocked, heard);
    }
    pthread_sigmask(SIG_SETMASK, &blocked, &before_);
  }
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_;
};

}  // namespace statcollect

#endif  // STATCOLLECT_COMMON_SIGNALS_BLOCKED_H_
