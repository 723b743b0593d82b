// Passes events to the followers of a run as they become durable.
#ifndef STATCOLLECT_SERVER_CONTROL_EVENT_FEED_H_
#define STATCOLLECT_SERVER_CONTROL_EVENT_FEED_H_

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>

#include "common/records.h"
#include "common/thread_annotations.h"
#include "server/control/run_feed.h"

namespace statcollect {

struct FeedEvent {
  std::string run;
  std::uint32_t attempt = 0;  // number of the launch
  std::uint32_t rank = 0;
  EventRecord event;
};

// Thread-safe. Followers are called one at a time, with the feed's mutex held: they must not block
// or call the feed.
class EventFeed {
 public:
  using Follower = std::function<void(const FeedEvent*)>;  // null: the feed has ended

  // `runs` hears of every event's run; null: nobody does. It must outlive the feed.
  explicit EventFeed(RunFeed* runs = nullptr) : runs_(runs) {}

  // After it returns, the follower gets every published event of the run, until Unfollow with the
  // returned id.
  std::uint64_t Follow(const std::string& run, Follower follower) {
    MutexLock lock(mutex_);
    if (closed_) {
      follower(nullptr);
    } else {
      followers_[++last_] = {run, std::move(follower)};
    }
    return last_;
  }
  // After it returns, the follower is not called.
  void Unfollow(std::uint64_t id) {
    MutexLock lock(mutex_);
    followers_.erase(id);
  }
  void Publish(const FeedEvent& event) {
    if (runs_ != nullptr) runs_->Evented(event.run);
    MutexLock lock(mutex_);
    for (const auto& [id, follower] : followers_) {
      if (follower.first == event.run) follower.second(&event);
    }
  }
  // Tells current and later followers that the feed has ended. Idempotent.
  void Close() {
    MutexLock lock(mutex_);
    closed_ = true;
    for (const auto& [id, follower] : followers_) follower.second(nullptr);
    followers_.clear();
  }
  std::size_t followers() {
    MutexLock lock(mutex_);
    return followers_.size();
  }

 private:
  RunFeed* const runs_;
  Mutex mutex_;
  bool closed_ STATCOLLECT_GUARDED_BY(mutex_) = false;
  std::uint64_t last_ STATCOLLECT_GUARDED_BY(mutex_) = 0;
  std::map<std::uint64_t, std::pair<std::string, Follower>> followers_
      STATCOLLECT_GUARDED_BY(mutex_);
};

}  // namespace statcollect

#endif  // STATCOLLECT_SERVER_CONTROL_EVENT_FEED_H_
