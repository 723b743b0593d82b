// Waits between attempts to reach the collector: doubling from `min` to `max`, each shortened by a
// random part, so that the ranks of a launch do not come back all at once.
#ifndef STATCOLLECT_AGENT_EXPORT_BACKOFF_H_
#define STATCOLLECT_AGENT_EXPORT_BACKOFF_H_

#include <chrono>
#include <cstdint>
#include <random>

namespace statcollect {

struct BackoffOptions {
  std::chrono::milliseconds min{100};
  std::chrono::milliseconds max{5000};
};

class Backoff {
 public:
  Backoff(BackoffOptions options, std::uint64_t seed)
      : options_(options), next_(options.min), random_(seed) {}

  // Between half of the current wait and all of it.
  std::chrono::milliseconds Next();
  void Reset() { next_ = options_.min; }

 private:
  const BackoffOptions options_;
  std::chrono::milliseconds next_;
  std::mt19937_64 random_;
};

}  // namespace statcollect

#endif  // STATCOLLECT_AGENT_EXPORT_BACKOFF_H_
