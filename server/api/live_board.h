// What all readers of FollowRuns share: the state of each run, made once for all of them when
// something has changed.
#ifndef STATCOLLECT_SERVER_API_LIVE_BOARD_H_
#define STATCOLLECT_SERVER_API_LIVE_BOARD_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <stop_token>
#include <string>
#include <thread>

#include "common/status.h"
#include "common/thread_annotations.h"
#include "server/control/run_feed.h"
#include "server/query/query.h"
#include "statcollect/v1/query.pb.h"

namespace statcollect::api {

struct LiveLimits {
  std::size_t followers_max = 256;
  std::chrono::milliseconds interval{1'000};  // between two looks at what has changed
  std::chrono::milliseconds beat{
      10'000};  // between two messages to a follower, if there is nothing to say
  std::chrono::milliseconds linger{
      60'000};  // watches on after the last follower, so that one may come back
};

// Who follows. Called from the board's thread and without its mutex; must not block.
class LiveFollower {
 public:
  virtual ~LiveFollower() = default;
  virtual void Advance(bool beat) = 0;  // there may be something to send; beat: say at least that
                                        // the collector lives
  virtual void End(const Status& why) = 0;
};

// Thread-safe. The board is of all projects, and its names carry them; a reader sees its own. One
// thread looks at the runs that the feed names, at most once an interval, and only while somebody
// follows; what it costs does not depend on the number of followers or of unchanged runs.
class LiveBoard {
 public:
  // How far a follower has read. Numbers of one epoch only grow.
  struct Place {
    std::uint64_t epoch = 0, number = 0;
  };

  // Both must outlive it.
  LiveBoard(const query::QueryEngine& engine, RunFeed& feed, const LiveLimits& limits);
  ~LiveBoard();
  LiveBoard(const LiveBoard&) = delete;
  LiveBoard& operator=(const LiveBoard&) = delete;

  // kResourceExhausted: too many follow; kUnavailable: the collector is shutting down. The follower
  // is called until Leave.
  Result<std::uint64_t> Join(std::weak_ptr<LiveFollower> follower);
  void Leave(std::uint64_t id);

  // Adds to the message what has changed after `place` in the wanted runs of the project (empty:
  // all), at most some hundred runs, and moves the place behind it. Begins with everything if the
  // place is of another epoch or too old. False: there is nothing new, or the runs have not been
  // read yet.
  bool Read(const std::string& project, const std::set<std::string>& wanted, Place& place,
            v1::FollowRunsResponse& message);

  static std::string Text(const Place& place);  // "5f3a-12"
  static Place Parse(const std::string& text);  // what is not a cursor is the beginning

 private:
  struct Entry {
    std::uint64_t number = 0;
    std::optional<v1::RunChange> change;  // absent: the run was removed
  };

  void Run();
  // One look: all runs if there is no board yet, else those that changed.
  Status Look();
  void LookAt(const std::string& run, std::uint64_t events);
  void PutLocked(const std::string& run, std::optional<v1::RunChange> change)
      STATCOLLECT_REQUIRES(mutex_);
  void ForgetRemovedLocked() STATCOLLECT_REQUIRES(mutex_);
  // The followers that still exist, kept alive. `forget`: removes all from the board.
  std::vector<std::shared_ptr<LiveFollower>> Followers(bool forget);
  void Tell(bool beat);
  void EndAll(const Status& why);
  void Clear();
  // Until `until`, or earlier if something has changed, somebody came, or it ends. False: it ends.
  bool Wait(std::chrono::steady_clock::time_point until);
  bool Pause();  // an interval; false: it ends

  const query::QueryEngine& engine_;
  RunFeed& feed_;
  const LiveLimits limits_;
  std::stop_source stop_;
  Mutex mutex_;  // guards everything below; never held while a follower, the feed or the engine is
                 // called
  ConditionVariable wake_;
  bool woken_
      STATCOLLECT_GUARDED_BY(mutex_) = false,
      ending_ STATCOLLECT_GUARDED_BY(mutex_) = false, ready_ STATCOLLECT_GUARDED_BY(mutex_) = false,
      closed_ STATCOLLECT_GUARDED_BY(mutex_) = false;
  std::uint64_t epoch_
      STATCOLLECT_GUARDED_BY(mutex_) = 0,
      number_ STATCOLLECT_GUARDED_BY(mutex_) = 0,
      forgotten_ STATCOLLECT_GUARDED_BY(mutex_) = 0, last_id_ STATCOLLECT_GUARDED_BY(mutex_) = 0;
  std::map<std::string, Entry> runs_ STATCOLLECT_GUARDED_BY(mutex_);
  std::map<std::uint64_t, std::string> by_number_ STATCOLLECT_GUARDED_BY(mutex_);
  std::size_t removed_ STATCOLLECT_GUARDED_BY(mutex_) = 0;  // entries without a run
  std::map<std::uint64_t, std::weak_ptr<LiveFollower>> followers_ STATCOLLECT_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace statcollect::api

#endif  // STATCOLLECT_SERVER_API_LIVE_BOARD_H_
