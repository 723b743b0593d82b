#include "server/access/failure_limiter.h"

#include <functional>
#include <utility>

namespace statcollect::access {

bool FailureLimiter::Take(Slot& slot, std::uint32_t most, Time now) {
  if (slot.written == 0 || now - slot.begin >= kWindow) slot = {.begin = now, .written = 0};
  if (slot.written >= most) return false;
  ++slot.written;
  return true;
}

std::optional<std::uint64_t> FailureLimiter::Admit(std::string_view address, Time now) {
  Slot& slot = slots_[std::hash<std::string_view>()(address) % kSlots];
  if (Take(slot, kPerAddress, now) && Take(all_, kInAll, now)) return std::exchange(left_out_, 0);
  ++left_out_;
  return std::nullopt;
}

}  // namespace statcollect::access
