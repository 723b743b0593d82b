// The collector's announcements of full statistics, until the program asks for them.
#ifndef STATCOLLECT_AGENT_FULL_STEPS_QUEUE_H_
#define STATCOLLECT_AGENT_FULL_STEPS_QUEUE_H_

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>

#include "common/parse.h"
#include "common/thread_annotations.h"
#include "statagent/agent.h"

namespace statcollect {

// Thread-safe.
class FullStepsQueue {
 public:
  // False: the arguments are not valid. The oldest of too many is dropped, for programs that never
  // ask.
  bool Add(const std::map<std::string, std::string>& arguments) {
    const auto number = [&](const char* name, std::uint64_t otherwise) {
      const auto found = arguments.find(name);
      return found == arguments.end() ? std::optional(otherwise)
                                      : ParseNumber<std::uint64_t>(found->second);
    };
    const auto first = number("first", 0), last = number("last", ~std::uint64_t{0}),
               every = number("every", 1);
    if (!first || !last || !every || *every == 0 || *last < *first) return false;
    MutexLock lock(mutex_);
    if (waiting_.size() >= kWaitingMax) waiting_.pop_front();
    waiting_.push_back({.first = *first, .last = *last, .every = *every});
    return true;
  }

  std::optional<statagent::FullSteps> Next() {
    MutexLock lock(mutex_);
    if (waiting_.empty()) return std::nullopt;
    const statagent::FullSteps next = waiting_.front();
    waiting_.pop_front();
    return next;
  }

 private:
  static constexpr std::size_t kWaitingMax = 64;
  Mutex mutex_;
  std::deque<statagent::FullSteps> waiting_ STATCOLLECT_GUARDED_BY(mutex_);
};

}  // namespace statcollect

#endif  // STATCOLLECT_AGENT_FULL_STEPS_QUEUE_H_
