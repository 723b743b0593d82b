#include "tests/simulation/threads.h"

#include <dlfcn.h>
#include <pthread.h>
#include <time.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <queue>
#include <utility>
#include <vector>

#include "tests/agent/stats/cuda/shim/fibre.h"

namespace statcollect::simulation {
namespace {

constexpr std::size_t kStackBytes = 512 << 10;
constexpr std::int64_t kEpochNanos = 1'700'000'000'000'000'000;  // of the simulated wall clock
constexpr std::int64_t kNever = -1;
// One lock in so many sets its thread aside, and one wait in so many ends for no reason.
constexpr std::uint64_t kPreempt = 6, kSpurious = 100;

// Whether calls of this thread are the scheduler's.
thread_local bool simulated = false;

template <typename F>
F* Next(const char* name) {
  return reinterpret_cast<F*>(dlsym(RTLD_NEXT, name));
}

}  // namespace

class Threads::Impl {
 public:
  struct Thread {
    cuda_shim::Fibre fibre{kStackBytes};
    std::function<void()> body;
    const void* waits_on = nullptr;
    std::uint64_t wait = 0;  // number of the wait, to tell an old deadline from the present one
    bool timed_out = false, done = true, joinable = false;
  };

  explicit Impl(std::uint64_t seed) : random(seed) { current = this; }
  ~Impl() {
    current = nullptr;
    for (auto& thread : threads) {
      if (!thread->done)
        (void)thread.release();  // its stack holds what nobody can take down any more
    }
  }

  static Impl* current;

  Thread* Spawn(std::function<void()> body, bool joinable) {
    Thread* thread = nullptr;
    if (idle.empty()) {
      threads.push_back(std::make_unique<Thread>());
      thread = threads.back().get();
    } else {
      thread = idle.back();
      idle.pop_back();
    }
    thread->body = std::move(body);
    thread->done = false;
    thread->joinable = joinable;
    thread->fibre.Start([](void* argument) { static_cast<Thread*>(argument)->body(); }, thread);
    ready.push_back(thread);
    ++unfinished;
    return thread;
  }

  bool Step() {
    TakeDue();
    while (ready.empty()) {
      if (timers.empty()) return false;
      now = std::max(now, timers.top().at);
      TakeDue();
    }
    const std::size_t chosen = random() % ready.size();
    running = std::exchange(ready[chosen], ready.back());
    ready.pop_back();
    ++steps;
    now += static_cast<std::int64_t>(random() % 20'000);
    simulated = true;
    running->fibre.Resume();
    simulated = false;
    Thread* const ran = std::exchange(running, nullptr);
    if (ran->fibre.ended()) End(ran);
    return true;
  }

  // --- of the running thread
  void SetAside() { running->fibre.Yield(); }
  void Yield() {
    ready.push_back(running);
    SetAside();
  }
  void MaybeYield() {
    if (random() % kPreempt == 0) Yield();
  }
  // True if the deadline came first.
  bool Wait(const void* place, std::int64_t deadline) {
    Thread* const self = running;
    self->waits_on = place;
    self->timed_out = false;
    ++self->wait;
    waiting.push_back(self);
    if (deadline != kNever) timers.push({deadline, ++timer_count, self, self->wait, {}});
    SetAside();
    return self->timed_out;
  }
  void WakeAll(const void* place) {
    for (std::size_t i = 0; i < waiting.size();) {
      if (waiting[i]->waits_on == place) {
        Rouse(i);
      } else {
        ++i;
      }
    }
  }
  void WakeOne(const void* place) {
    std::size_t count = 0, chosen = 0;
    for (std::size_t i = 0; i < waiting.size(); ++i) {
      if (waiting[i]->waits_on == place && random() % ++count == 0) chosen = i;
    }
    if (count > 0) Rouse(chosen);
  }

  struct Timer {
    std::int64_t at;
    std::uint64_t number;
    Thread* thread;  // nullptr: `body` is due
    std::uint64_t wait;
    std::function<void()> body;
    bool operator<(const Timer& other) const {  // the earliest is on top
      return std::pair(at, number) > std::pair(other.at, other.number);
    }
  };

  std::mt19937_64 random;
  std::int64_t now = 1'000'000'000'000;
  std::int64_t wall = kEpochNanos;  // the wall clock's lead
  std::uint64_t steps = 0, timer_count = 0;
  std::size_t unfinished = 0;
  Thread* running = nullptr;
  std::vector<std::unique_ptr<Thread>> threads;
  std::vector<Thread*> ready, waiting, idle;
  std::priority_queue<Timer> timers;

 private:
  void Rouse(std::size_t index) {
    Thread* const thread = waiting[index];
    waiting.erase(waiting.begin() + static_cast<std::ptrdiff_t>(index));
    thread->waits_on = nullptr;
    ready.push_back(thread);
  }
  void TakeDue() {
    while (!timers.empty() && timers.top().at <= now) {
      Timer timer = timers.top();
      timers.pop();
      if (timer.thread == nullptr) {
        Spawn(std::move(timer.body), false);
        continue;
      }
      const auto at = std::find(waiting.begin(), waiting.end(), timer.thread);
      if (at == waiting.end() || timer.thread->wait != timer.wait) continue;
      timer.thread->timed_out = true;
      Rouse(static_cast<std::size_t>(at - waiting.begin()));
    }
  }
  void End(Thread* thread) {
    thread->body = nullptr;
    thread->done = true;
    --unfinished;
    WakeAll(thread);
    if (!thread->joinable) idle.push_back(thread);  // else until it is joined
  }
};

Threads::Impl* Threads::Impl::current = nullptr;

Threads::Threads(std::uint64_t seed) : impl_(std::make_unique<Impl>(seed)) {}
Threads::~Threads() = default;
bool Threads::Step() { return impl_->Step(); }
std::uint64_t Threads::steps() const { return impl_->steps; }
std::size_t Threads::unfinished() const { return impl_->unfinished; }
Nanos Threads::now() const { return Nanos(impl_->now); }
void Threads::Spawn(std::function<void()> body) { impl_->Spawn(std::move(body), false); }
void Threads::JumpWall(Nanos by) { impl_->wall += by.count(); }
void Threads::After(Nanos delay, std::function<void()> body) {
  impl_->timers.push(
      {impl_->now + delay.count(), ++impl_->timer_count, nullptr, 0, std::move(body)});
}
void Threads::Sleep(Nanos duration) { impl_->Wait(nullptr, impl_->now + duration.count()); }
void Threads::Yield() { impl_->Yield(); }
void Threads::Park(const void* place) { impl_->Wait(place, kNever); }
void Threads::Wake(const void* place) { impl_->WakeAll(place); }
std::mt19937_64& Threads::random() { return impl_->random; }

Real::Real() : before_(std::exchange(simulated, false)) {}
Real::~Real() { simulated = before_; }

namespace {

Threads::Impl& Scheduler() { return *Threads::Impl::current; }

std::int64_t NanosOf(const timespec& time) { return time.tv_sec * 1'000'000'000 + time.tv_nsec; }

std::int64_t OffsetOf(clockid_t clock) { return clock == CLOCK_REALTIME ? Scheduler().wall : 0; }

int RealLock(pthread_mutex_t* mutex) {
  static auto* const next = Next<int(pthread_mutex_t*)>("pthread_mutex_lock");
  return next(mutex);
}
int RealTryLock(pthread_mutex_t* mutex) {
  static auto* const next = Next<int(pthread_mutex_t*)>("pthread_mutex_trylock");
  return next(mutex);
}
int RealUnlock(pthread_mutex_t* mutex) {
  static auto* const next = Next<int(pthread_mutex_t*)>("pthread_mutex_unlock");
  return next(mutex);
}

void Lock(pthread_mutex_t* mutex) {
  while (RealTryLock(mutex) != 0) Scheduler().Wait(mutex, kNever);
}

void Unlock(pthread_mutex_t* mutex) {
  (void)RealUnlock(mutex);
  Scheduler().WakeAll(mutex);
}

int WaitFor(pthread_cond_t* condition, pthread_mutex_t* mutex, std::int64_t deadline) {
  if (deadline != kNever && deadline <= Scheduler().now) {
    Unlock(mutex);
    Scheduler().Yield();
    Lock(mutex);
    return ETIMEDOUT;
  }
  Unlock(mutex);
  bool timed_out = false;
  if (Scheduler().random() % kSpurious == 0) {
    Scheduler().Yield();
  } else {
    timed_out = Scheduler().Wait(condition, deadline);
  }
  Lock(mutex);
  return timed_out ? ETIMEDOUT : 0;
}

Threads::Impl::Thread* Find(pthread_t id) {
  if (Threads::Impl::current == nullptr) return nullptr;
  for (const auto& thread : Scheduler().threads) {
    if (reinterpret_cast<pthread_t>(thread.get()) == id) return thread.get();
  }
  return nullptr;
}

}  // namespace
}  // namespace statcollect::simulation

// The C library's functions, for the whole program. They are what the headers declare, so their
// names and their exception specifications are not ours to choose.
using statcollect::simulation::Find;
using statcollect::simulation::kNever;
using statcollect::simulation::NanosOf;
using statcollect::simulation::Next;
using statcollect::simulation::OffsetOf;
using statcollect::simulation::Scheduler;
using statcollect::simulation::simulated;
namespace simulation = statcollect::simulation;

extern "C" {

int pthread_mutex_lock(pthread_mutex_t* mutex) noexcept {
  if (!simulated) return simulation::RealLock(mutex);
  Scheduler().MaybeYield();
  simulation::Lock(mutex);
  return 0;
}

int pthread_mutex_unlock(pthread_mutex_t* mutex) noexcept {
  if (!simulated) return simulation::RealUnlock(mutex);
  simulation::Unlock(mutex);
  Scheduler().MaybeYield();
  return 0;
}

int pthread_cond_wait(pthread_cond_t* condition, pthread_mutex_t* mutex) {
  if (simulated) return simulation::WaitFor(condition, mutex, kNever);
  static auto* const next = Next<int(pthread_cond_t*, pthread_mutex_t*)>("pthread_cond_wait");
  return next(condition, mutex);
}

int pthread_cond_timedwait(pthread_cond_t* condition, pthread_mutex_t* mutex,
                           const timespec* deadline) {
  if (simulated)
    return simulation::WaitFor(condition, mutex, NanosOf(*deadline) - OffsetOf(CLOCK_REALTIME));
  static auto* const next =
      Next<int(pthread_cond_t*, pthread_mutex_t*, const timespec*)>("pthread_cond_timedwait");
  return next(condition, mutex, deadline);
}

int pthread_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex, clockid_t clock,
                           const timespec* deadline) {
  if (simulated) {
    const std::int64_t at = NanosOf(*deadline) - OffsetOf(clock);
    return simulation::WaitFor(condition, mutex, at < 0 ? 0 : at);
  }
  static auto* const next =
      Next<int(pthread_cond_t*, pthread_mutex_t*, clockid_t, const timespec*)>(
          "pthread_cond_clockwait");
  return next(condition, mutex, clock, deadline);
}

int pthread_cond_signal(pthread_cond_t* condition) noexcept {
  if (simulated) {
    Scheduler().WakeOne(condition);
    return 0;
  }
  static auto* const next = Next<int(pthread_cond_t*)>("pthread_cond_signal");
  return next(condition);
}

int pthread_cond_broadcast(pthread_cond_t* condition) noexcept {
  if (simulated) {
    Scheduler().WakeAll(condition);
    return 0;
  }
  static auto* const next = Next<int(pthread_cond_t*)>("pthread_cond_broadcast");
  return next(condition);
}

int pthread_create(pthread_t* id, const pthread_attr_t* attributes, void* (*start)(void*),
                   void* argument) noexcept {
  if (simulated) {
    auto* const thread = Scheduler().Spawn([start, argument] { (void)start(argument); }, true);
    *id = reinterpret_cast<pthread_t>(thread);
    return 0;
  }
  static auto* const next =
      Next<int(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*)>("pthread_create");
  return next(id, attributes, start, argument);
}

int pthread_join(pthread_t id, void** result) {
  if (simulated) {
    auto* const thread = Find(id);
    while (!thread->done) Scheduler().Wait(thread, kNever);
    thread->joinable = false;
    Scheduler().idle.push_back(thread);
    return 0;
  }
  static auto* const next = Next<int(pthread_t, void**)>("pthread_join");
  return next(id, result);
}

int pthread_detach(pthread_t id) noexcept {
  if (simulated) {
    auto* const thread = Find(id);
    thread->joinable = false;
    if (thread->done) Scheduler().idle.push_back(thread);
    return 0;
  }
  static auto* const next = Next<int(pthread_t)>("pthread_detach");
  return next(id);
}

int pthread_setname_np(pthread_t id, const char* name) noexcept {
  if (simulated) return 0;
  static auto* const next = Next<int(pthread_t, const char*)>("pthread_setname_np");
  return next(id, name);
}

int nanosleep(const timespec* duration, timespec* left) {
  if (simulated) {
    (void)Scheduler().Wait(nullptr, Scheduler().now + NanosOf(*duration));
    return 0;
  }
  static auto* const next = Next<int(const timespec*, timespec*)>("nanosleep");
  return next(duration, left);
}

int clock_gettime(clockid_t clock, timespec* time) noexcept {
  if (simulated && (clock == CLOCK_MONOTONIC || clock == CLOCK_REALTIME)) {
    const std::int64_t nanos = Scheduler().now + OffsetOf(clock);
    time->tv_sec = nanos / 1'000'000'000;
    time->tv_nsec = nanos % 1'000'000'000;
    return 0;
  }
  static auto* const next = Next<int(clockid_t, timespec*)>("clock_gettime");
  return next(clock, time);
}

}  // extern "C"
