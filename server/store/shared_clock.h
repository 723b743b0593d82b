// The clock of a collector that shares its store with others: what they write down is dated by the
// engine's clock, so that a collector whose own clock is hours off neither takes others' runs for
// old ones nor lets its own look old to them.
//
// The engine is asked at the start and every minute. Between two questions the steady clock counts,
// so a step of the own clock changes nothing. While the own clock agrees with the engine's, it is
// used as it is, because it is finer.
#ifndef STATCOLLECT_SERVER_STORE_SHARED_CLOCK_H_
#define STATCOLLECT_SERVER_STORE_SHARED_CLOCK_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <thread>

#include "common/clock.h"
#include "common/thread_annotations.h"
#include "server/store/fleet_store.h"

namespace statcollect {

// Threads: any.
class SharedClock final : public Clock {
 public:
  // Further apart, the clocks do not agree. The engine's may be known to a second only.
  static constexpr std::chrono::seconds kTolerance{2};

  // Borrows the store and the own clock. Asks once before it returns.
  SharedClock(FleetStore& store, const Clock& own, std::function<void(const std::string& line)> log,
              std::chrono::milliseconds interval = std::chrono::minutes(1));
  ~SharedClock() override;

  std::chrono::steady_clock::time_point Now() const override { return own_.Now(); }
  std::int64_t UnixNanos() const override { return Steady() + unix_minus_steady_.load(); }

 private:
  std::int64_t Steady() const {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(own_.Now().time_since_epoch())
        .count();
  }
  void Ask();
  void Report(std::int64_t own_ahead);

  FleetStore& store_;
  const Clock& own_;
  const std::function<void(const std::string&)> log_;
  const std::chrono::milliseconds interval_;
  std::atomic<std::int64_t> unix_minus_steady_;
  std::optional<std::int64_t> reported_;  // how far the own clock was ahead; of the asking thread
  Mutex mutex_;
  ConditionVariable stop_;
  bool stopping_ STATCOLLECT_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace statcollect

#endif  // STATCOLLECT_SERVER_STORE_SHARED_CLOCK_H_
