// Threads of the agent's in somebody else's process: named, and deaf to the signals that the process handles,
// so that its handlers never run on them. Threads that they start (gRPC's) inherit this.
#ifndef STATCOLLECT_AGENT_EXPORT_WORKER_THREAD_H_
#define STATCOLLECT_AGENT_EXPORT_WORKER_THREAD_H_

#include <pthread.h>
#include <signal.h>

#include <thread>
#include <utility>

namespace statcollect {

// While it lives, the calling thread blocks every signal but those of its own faults, which must still end
// the process in the usual way, and a profiler's.
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

// `name`: at most 15 characters. Throws what std::thread does.
template <typename F>
std::thread StartWorker(const char* name, F function) {
  const SignalsBlocked inherited;
  std::thread thread(std::move(function));
  pthread_setname_np(thread.native_handle(), name);
  return thread;
}

}  // namespace statcollect

#endif  // STATCOLLECT_AGENT_EXPORT_WORKER_THREAD_H_
