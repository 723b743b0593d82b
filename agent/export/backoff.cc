#include "agent/export/backoff.h"

#include <algorithm>

namespace statcollect {

std::chrono::milliseconds Backoff::Next() {
  const auto wait = next_;
  next_ = std::min(next_ * 2, options_.max);
  std::uniform_int_distribution<std::int64_t> part(wait.count() / 2, wait.count());
  return std::chrono::milliseconds(part(random_));
}

}  // namespace statcollect
