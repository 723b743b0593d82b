// Starts the agent's threads in the training process: named, and with signals blocked, so that the
// process's signal handlers never run on them. Threads that they start (gRPC's) inherit this.
#ifndef STATCOLLECT_AGENT_EXPORT_WORKER_THREAD_H_
#define STATCOLLECT_AGENT_EXPORT_WORKER_THREAD_H_

#include <pthread.h>

#include <thread>
#include <utility>

#include "common/signals_blocked.h"

namespace statcollect {

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
