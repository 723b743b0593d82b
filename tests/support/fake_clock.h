// A clock that stands still until a test moves it.
#ifndef STATCOLLECT_TESTS_SUPPORT_FAKE_CLOCK_H_
#define STATCOLLECT_TESTS_SUPPORT_FAKE_CLOCK_H_

#include <atomic>
#include <chrono>
#include <cstdint>

#include "common/clock.h"

namespace statcollect::testing {

class FakeClock final : public Clock {
 public:
  std::chrono::steady_clock::time_point Now() const override {
    return std::chrono::steady_clock::time_point(std::chrono::nanoseconds(nanos_.load()));
  }
  std::int64_t UnixNanos() const override { return nanos_.load() + wall_.load(); }
  void Advance(std::chrono::nanoseconds by) { nanos_ += by.count(); }
  // Sets the wall clock alone.
  void JumpWall(std::chrono::nanoseconds by) { wall_ += by.count(); }

 private:
  std::atomic<std::int64_t> nanos_{1'000'000'000'000};
  std::atomic<std::int64_t> wall_{0};
};

}  // namespace statcollect::testing

#endif  // STATCOLLECT_TESTS_SUPPORT_FAKE_CLOCK_H_
