// Turns: of those that name the same key, one at a time goes on, in no particular order. Unlike
// under a mutex of the whole, others go on meanwhile, so a turn may be held over requests that take
// long.
#ifndef STATCOLLECT_SERVER_INGEST_TURNS_H_
#define STATCOLLECT_SERVER_INGEST_TURNS_H_

#include <set>
#include <utility>

#include "common/thread_annotations.h"

namespace statcollect {

// Threads: any. Key: ordered, and copied.
template <typename Key>
class Turns {
 public:
  // Waits for its turn, which lasts until it is destroyed.
  class Turn {
   public:
    Turn(Turns& turns, Key key) : turns_(turns), key_(std::move(key)) { turns_.Begin(key_); }
    ~Turn() { turns_.End(key_); }
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

   private:
    Turns& turns_;
    const Key key_;
  };

 private:
  void Begin(const Key& key) {
    MutexLock lock(mutex_);
    ended_.wait(mutex_, [&]() STATCOLLECT_REQUIRES(mutex_) { return !taken_.contains(key); });
    taken_.insert(key);
  }
  void End(const Key& key) {
    MutexLock lock(mutex_);
    taken_.erase(key);
    ended_.notify_all();
  }

  Mutex mutex_;
  ConditionVariable ended_;
  std::set<Key> taken_ STATCOLLECT_GUARDED_BY(mutex_);
};

}  // namespace statcollect

#endif  // STATCOLLECT_SERVER_INGEST_TURNS_H_
