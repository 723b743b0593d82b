#include "server/ingest/byte_rates.h"

#include <algorithm>

namespace statcollect {

std::chrono::nanoseconds ByteRates::TakeFrom(Time* earned_at, std::uint64_t rate,
                                             std::uint64_t bytes, Time now) {
  const std::chrono::duration<double> cost(static_cast<double>(bytes) / static_cast<double>(rate));
  *earned_at = std::max(*earned_at, now - kBurst) +
               std::chrono::duration_cast<std::chrono::nanoseconds>(cost);
  return std::max(std::chrono::nanoseconds(0), std::chrono::nanoseconds(*earned_at - now));
}

std::chrono::nanoseconds ByteRates::Take(const std::string& caller, std::uint64_t bytes, Time now) {
  std::chrono::nanoseconds wait(0);
  {
    MutexLock lock(mutex_);
    if (limits_.in_all > 0) wait = TakeFrom(&all_, limits_.in_all, bytes, now);
    if (limits_.each > 0 && !caller.empty()) {
      if (callers_.size() >= kCallersMax)
        std::erase_if(callers_, [&](const auto& known) { return known.second <= now; });
      wait = std::max(wait, TakeFrom(&callers_[caller], limits_.each, bytes, now));
    }
  }
  waited_millis_.fetch_add(static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::milliseconds>(wait).count()));
  return wait;
}

}  // namespace statcollect
