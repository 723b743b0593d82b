// Tells what is asked for again from what is asked for once.
#ifndef STATCOLLECT_SERVER_STORE_ROCKSDB_ASKED_BEFORE_H_
#define STATCOLLECT_SERVER_STORE_ROCKSDB_ASKED_BEFORE_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "server/store/key.h"

namespace statcollect {

// Remembers the blocks of a few thousand series. Thread-safe.
class AskedBefore {
 public:
  // Whether these blocks of a rank were asked for before, from the same step on, and not long ago.
  // The parts of a long series are asked for one by one, and each of them for the first time.
  bool operator()(const StatKey& blocks, std::uint64_t from_step) {
    const std::uint64_t name =
        Mix(Mix(Mix(std::uint64_t{blocks.attempt} << 32 | blocks.rank) ^ blocks.activation) ^
            from_step);
    return last_[name % kPlaces].exchange(name, std::memory_order_relaxed) == name;
  }

 private:
  static constexpr std::size_t kPlaces = 4096;

  // Spreads the bits; different numbers stay different.
  static std::uint64_t Mix(std::uint64_t x) {
    x += 0x9e3779b97f4a7c15;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
    x = (x ^ x >> 27) * 0x94d049bb133111eb;
    return x ^ x >> 31;
  }

  std::array<std::atomic<std::uint64_t>, kPlaces> last_{};
};

}  // namespace statcollect

#endif  // STATCOLLECT_SERVER_STORE_ROCKSDB_ASKED_BEFORE_H_
