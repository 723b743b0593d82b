// Time as an interface, so that tests advance it instead of sleeping.
#ifndef STATCOLLECT_COMMON_CLOCK_H_
#define STATCOLLECT_COMMON_CLOCK_H_

#include <chrono>
#include <cstdint>

namespace statcollect {

class Clock {
 public:
  virtual ~Clock() = default;
  // Monotonic: for deadlines and ages.
  virtual std::chrono::steady_clock::time_point Now() const = 0;
  // Wall clock in nanoseconds since the Unix epoch. For display only; nothing is ordered by it.
  virtual std::int64_t UnixNanos() const = 0;
};

class SystemClock final : public Clock {
 public:
  std::chrono::steady_clock::time_point Now() const override {
    return std::chrono::steady_clock::now();
  }
  std::int64_t UnixNanos() const override {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(
               std::chrono::system_clock::now().time_since_epoch())
        .count();
  }
};

}  // namespace statcollect

#endif  // STATCOLLECT_COMMON_CLOCK_H_
