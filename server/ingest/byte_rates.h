// How fast agents may send, each caller and all together. It slows them down, and refuses nothing:
// what an agent cannot send waits in its buffer and its spill file.
#ifndef STATCOLLECT_SERVER_INGEST_BYTE_RATES_H_
#define STATCOLLECT_SERVER_INGEST_BYTE_RATES_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <string>

#include "common/thread_annotations.h"

namespace statcollect {

// Thread-safe. Bursts of a second's bytes pass without a wait.
class ByteRates {
 public:
  using Time = std::chrono::steady_clock::time_point;
  static constexpr std::chrono::seconds kBurst{1};
  struct Limits {
    std::uint64_t each = 0, in_all = 0;  // bytes a second; 0: no limit
  };

  explicit ByteRates(const Limits& limits) : limits_(limits) {}

  bool any() const { return limits_.each > 0 || limits_.in_all > 0; }
  // So many bytes of a caller (empty: nobody in particular) have arrived: how long to wait before
  // reading more of it.
  std::chrono::nanoseconds Take(const std::string& caller, std::uint64_t bytes, Time now);
  // The sum of all waits.
  std::uint64_t waited_millis() const { return waited_millis_.load(); }

 private:
  // When what was taken has been earned; in the past for who takes less than allowed.
  static std::chrono::nanoseconds TakeFrom(Time* earned_at, std::uint64_t rate, std::uint64_t bytes,
                                           Time now);

  static constexpr std::size_t kCallersMax = 10'000;  // then those that owe nothing are forgotten
  const Limits limits_;
  std::atomic<std::uint64_t> waited_millis_{0};
  Mutex mutex_;
  Time all_ STATCOLLECT_GUARDED_BY(mutex_){};
  std::map<std::string, Time> callers_ STATCOLLECT_GUARDED_BY(mutex_);
};

}  // namespace statcollect

#endif  // STATCOLLECT_SERVER_INGEST_BYTE_RATES_H_
