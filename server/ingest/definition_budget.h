// The memory that the definitions of all connected sessions take together.
#ifndef STATCOLLECT_SERVER_INGEST_DEFINITION_BUDGET_H_
#define STATCOLLECT_SERVER_INGEST_DEFINITION_BUDGET_H_

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>

namespace statcollect {

// Thread-safe.
class DefinitionBudget {
 public:
  // Of one session: a million ordinary definitions have room, a million with names of 4 KiB do not.
  static constexpr std::uint64_t kSessionBytesMax = std::uint64_t{512} << 20;

  // `bytes_max` 0: half of the machine's memory.
  explicit DefinitionBudget(std::uint64_t bytes_max = 0,
                            std::uint64_t session_bytes_max = kSessionBytesMax)
      : bytes_max_(bytes_max > 0 ? bytes_max : HalfOfMemory()),
        session_bytes_max_(session_bytes_max) {}

  // False: there is no room, and nothing was taken.
  bool Take(std::uint64_t bytes) {
    std::uint64_t before = bytes_.load(std::memory_order_relaxed);
    do {
      if (bytes > bytes_max_ || before > bytes_max_ - bytes) return false;
    } while (!bytes_.compare_exchange_weak(before, before + bytes, std::memory_order_relaxed));
    return true;
  }
  void GiveBack(std::uint64_t bytes) { bytes_.fetch_sub(bytes, std::memory_order_relaxed); }

  std::uint64_t bytes() const { return bytes_.load(std::memory_order_relaxed); }
  std::uint64_t bytes_max() const { return bytes_max_; }
  std::uint64_t session_bytes_max() const { return session_bytes_max_; }

 private:
  static std::uint64_t HalfOfMemory() {
    const long pages = ::sysconf(_SC_PHYS_PAGES), page = ::sysconf(_SC_PAGESIZE);
    const std::uint64_t all =
        pages > 0 && page > 0 ? static_cast<std::uint64_t>(pages) * static_cast<std::uint64_t>(page)
                              : 0;
    return std::max(all / 2, std::uint64_t{1} << 30);
  }

  const std::uint64_t bytes_max_, session_bytes_max_;
  std::atomic<std::uint64_t> bytes_{0};
};

}  // namespace statcollect

#endif  // STATCOLLECT_SERVER_INGEST_DEFINITION_BUDGET_H_
