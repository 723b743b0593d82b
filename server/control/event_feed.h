// Hands events on to those who follow a run, as they become durable.
#ifndef STATCOLLECT_SERVER_CONTROL_EVENT_FEED_H_
#define STATCOLLECT_SERVER_CONTROL_EVENT_FEED_H_

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>

#include "common/records.h"
#include "common/thread_annotations.h"

namespace statcollect {

struct FeedEvent {
  std::string run;
  std::uint32_t attempt = 0;  // number of the launch
  std::uint32_t rank = 0;
  EventRecord event;
};

// Thread-safe. Followers are called one at a time, with the feed's mutex held: they must not block, nor call
// the feed.
class EventFeed {
 public:
  using Follower = std::function<void(const FeedEvent*)>;  // null: the feed has ended

  // From the return on, every event of the run that is published. Unfollow(its return) ends it.
  std::uint64_t Follow(const std::string& run, Follower follower) {
    MutexLock lock(mutex_);
    if (closed_) {
      follower(nullptr);
    } else {
      followers_[++last_] = {run, std::move(follower)};
    }
    return last_;
  }
  // From the return on the follower is not called.
  void Unfollow(std::uint64_t id) {
    MutexLock lock(mutex_);
    followers_.erase(id);
  }
  void Publish(const FeedEvent& event) {
    MutexLock lock(mutex_);
    for (const auto& [id, follower] : followers_) {
      if (follower.first == event.run) follower.second(&event);
    }
  }
  // Tells all followers, now and later ones, that nothing more comes. Idempotent.
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
  Mutex mutex_;
  bool closed_ STATCOLLECT_GUARDED_BY(mutex_) = false;
  std::uint64_t last_ STATCOLLECT_GUARDED_BY(mutex_) = 0;
  std::map<std::uint64_t, std::pair<std::string, Follower>> followers_ STATCOLLECT_GUARDED_BY(mutex_);
};

}  // namespace statcollect

#endif  // STATCOLLECT_SERVER_CONTROL_EVENT_FEED_H_
