#include "agent/bounded_run.h"

#include <memory>
#include <system_error>
#include <thread>
#include <utility>

#include "agent/export/worker_thread.h"
#include "common/thread_annotations.h"

namespace statcollect {
namespace {

struct Run {
  std::function<void()> work;
  Mutex mutex;
  ConditionVariable changed;
  bool ended STATCOLLECT_GUARDED_BY(mutex) = false;
};

void Work(Run& run) {
  run.work();
  MutexLock lock(run.mutex);
  run.ended = true;
  run.changed.notify_all();
}

}  // namespace

bool RunBounded(std::function<void()> work, std::chrono::steady_clock::time_point deadline,
                std::chrono::milliseconds patience,
                const std::function<std::uint64_t()>& progress) {
  const auto run = std::make_shared<Run>();
  run->work = std::move(work);
  std::thread thread;
  try {
    thread = StartWorker("statagent-close", [run] { Work(*run); });
  } catch (const std::system_error&) {
    run->work();
    return true;
  }
  bool ended = false;
  {
    MutexLock lock(run->mutex);
    const auto has_ended = [&]() STATCOLLECT_REQUIRES(run->mutex) { return run->ended; };
    ended = run->changed.wait_until(run->mutex, deadline, has_ended);
    for (bool moves = true; !ended && moves;) {
      const std::uint64_t before = progress();
      ended = run->changed.wait_for(run->mutex, patience, has_ended);
      moves = progress() != before;
    }
  }
  ended ? thread.join() : thread.detach();
  return ended;
}

}  // namespace statcollect
