// Decides which failed authentications are written down, so that thousands a second cost neither
// disk nor memory. It never refuses anything: a valid token passes whatever others send from its
// address.
#ifndef STATCOLLECT_SERVER_ACCESS_FAILURE_LIMITER_H_
#define STATCOLLECT_SERVER_ACCESS_FAILURE_LIMITER_H_

#include <array>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string_view>

namespace statcollect::access {

// Of fixed size: addresses that share a slot share its limit. Not thread-safe.
class FailureLimiter {
 public:
  using Time = std::chrono::steady_clock::time_point;
  static constexpr std::chrono::seconds kWindow{60};
  static constexpr std::uint32_t kPerAddress = 10;  // in a window
  static constexpr std::uint32_t kInAll = 300;      // in a window

  // Counts a failure. The number of failures that were not written down since the last one that
  // was, if this one is to be; absent if not.
  std::optional<std::uint64_t> Admit(std::string_view address, Time now);

 private:
  struct Slot {
    Time begin{};
    std::uint32_t written = 0;
  };
  static bool Take(Slot& slot, std::uint32_t most, Time now);

  static constexpr std::size_t kSlots = 1024;
  std::array<Slot, kSlots> slots_{};
  Slot all_{};
  std::uint64_t left_out_ = 0;
};

}  // namespace statcollect::access

#endif  // STATCOLLECT_SERVER_ACCESS_FAILURE_LIMITER_H_
