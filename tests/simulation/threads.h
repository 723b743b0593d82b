// Threads, locks, condition variables, sleeps and clocks as steps of one seeded scheduler, for code
// that knows nothing of it: threads.cc defines the C library's functions for them
// (pthread_mutex_lock, pthread_cond_wait, pthread_create, clock_gettime and so on), and the
// program's own definitions win over those of the library. What runs inside is the product's code
// as it is shipped, in one thread of the operating system; everything else in the program, like
// RocksDB's threads, notices nothing.
//
// A simulated thread may be set aside where it takes or releases a lock, waits or sleeps, and
// nowhere else. Code that shares data only under locks has no other interleavings. The same seed
// gives the same run.
#ifndef STATCOLLECT_TESTS_SIMULATION_THREADS_H_
#define STATCOLLECT_TESTS_SIMULATION_THREADS_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <random>

namespace statcollect::simulation {

using Nanos = std::chrono::nanoseconds;

class Threads {
 public:
  explicit Threads(std::uint64_t seed);
  // Threads that have not ended are forgotten where they are, with everything that they own.
  ~Threads();
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;

  // --- from outside
  // Runs one thread until it is set aside; first moves the time on if all of them wait. False:
  // nothing is left that could ever run.
  bool Step();
  std::uint64_t steps() const;
  std::size_t unfinished() const;

  // --- from inside and outside
  Nanos now() const;
  void Spawn(std::function<void()> body);
  // Moves the wall clock, and nothing else.
  void JumpWall(Nanos by);
  void After(Nanos delay, std::function<void()> body);

  // --- from inside
  void Sleep(Nanos duration);
  void Yield();
  // Waits until Wake of the same place. May return earlier: check the condition again.
  void Park(const void* place);
  void Wake(const void* place);

  // The scheduler's own random numbers.
  std::mt19937_64& random();

  class Impl;

 private:
  const std::unique_ptr<Impl> impl_;
};

// While it lives, the calls of this thread go to the operating system. For code that shares locks
// with real threads; it is one step of the scheduler.
class Real {
 public:
  Real();
  ~Real();
  Real(const Real&) = delete;
  Real& operator=(const Real&) = delete;

 private:
  const bool before_;
};

}  // namespace statcollect::simulation

#endif  // STATCOLLECT_TESTS_SIMULATION_THREADS_H_
