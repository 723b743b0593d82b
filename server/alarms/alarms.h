// Evaluates the alarm rules over what becomes durable, outside of ingest's way: Take puts a batch into a
// bounded queue and returns; one thread of low priority does the rest. Where it cannot keep up, statistics
// are left out and counted, never waited for.
//
// An alarm is an event of the run that the collector adds (Store::PutEvents), then handed to followers and
// the webhook. What was judged is kept with the run, in the document "alarms": lines "attempt rank step".
// After a restart the state of a rank is rebuilt from the last steps that are stored, when its next batch
// comes, or at once where records were stored and not judged; steps up to the one in the document add nothing
// again, and an event has the same key however often it is found. So nothing is repeated and nothing lost.
//
// Invariant: state of all ranks takes at most settings.memory_bytes_max, or is of one rank; the rank that was
// silent for longest is forgotten first, and rebuilt if it goes on.
//
// Threads: any may call; the store is used from the own thread only.
#ifndef STATCOLLECT_SERVER_ALARMS_ALARMS_H_
#define STATCOLLECT_SERVER_ALARMS_ALARMS_H_

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/clock.h"
#include "server/alarms/rank_rules.h"
#include "server/alarms/replica_rule.h"
#include "server/control/alarm_settings.h"
#include "server/control/control.h"
#include "server/control/event_feed.h"
#include "server/store/committed_batch.h"
#include "server/store/store.h"

namespace statcollect::alarms {

inline constexpr char kDocument[] = "alarms";

struct AlarmsOptions {
  AlarmSettings settings;
  std::size_t queue_bytes_max = std::size_t{32} << 20;
  // After so long without a record, what there is of a step is judged; then everything.
  std::chrono::milliseconds pause{2'000}, silence{30'000};
  std::chrono::milliseconds document_interval{5'000};
  std::chrono::milliseconds drain{500};               // that Drain goes on judging
  EventFeed* feed = nullptr;                          // may be null; outlives this
  std::function<void(const FeedEvent&)> notify = {};  // of alarms; may be empty; must not block
  std::function<void(const std::string& line)> log = [](const std::string&) {};
};

class Alarms {
 public:
  Alarms(Store& store, const Clock& clock, AlarmsOptions options);
  ~Alarms();  // drains
  Alarms(const Alarms&) = delete;
  Alarms& operator=(const Alarms&) = delete;

  // Never blocks for longer than it takes to put something into a queue.
  void Take(CommittedBatch batch) noexcept;
  // Judges what is queued for as long as options.drain, writes what is to be kept, ends the thread. What is
  // left then, or comes later, is judged after the next start, as after a crash. Idempotent.
  void Drain();
  AlarmStatus GetStatus();
  // Waits until everything taken so far has been judged, as far as it can be. For tests.
  void AwaitIdle();

 private:
  using AttemptRank = std::pair<AttemptId, std::uint32_t>;
  struct Rank {
    AttemptMeta attempt;
    std::unique_ptr<RankRules> rules;
    std::optional<std::uint64_t> silent_until;           // steps that were judged before the state was built
    std::set<std::pair<AlarmRule, std::string>> active;  // rule and subject
    std::set<std::uint64_t> stored;                      // numbers of events that the run had before
    std::chrono::steady_clock::time_point last;          // record
    std::size_t bytes = 0;
    bool paused = false, closed = false, too_large = false;
  };
  struct Attempt {
    AttemptMeta meta;
    std::optional<ReplicaRule> replicas;                       // once every rank of the world is there
    std::deque<std::pair<std::uint32_t, StepDigest>> waiting;  // of ranks that were judged before that
    std::optional<std::pair<std::uint64_t, std::uint32_t>> nonfinite;  // first: step, rank
    std::size_t ranks = 0;                                             // whose state is held
  };
  struct Item {
    CommittedBatch batch;
    std::size_t bytes = 0;
    bool gap = false;  // its statistics were left out
    std::unique_ptr<Item> next;
  };
  struct Unwritten {
    AttemptMeta attempt;
    CollectorEvent event;
    bool alarm = false;
  };

  void Run();
  bool MustEnd() const { return stopping_ && clock_.Now() >= end_at_; }
  // Oldest first; the caller owns them.
  std::unique_ptr<Item> TakeQueue();
  void Judge(const Item& item);
  void JudgeStats(const Item& item, Rank* rank);
  void PublishEvents(const CommittedBatch& batch);
  // Null: its state is not held, and there is no room for it or it cannot be read.
  Rank* Find(const AttemptMeta& attempt, std::uint32_t rank);
  // Builds the state of a rank from what is stored.
  Status Load(const AttemptMeta& attempt, std::uint32_t number, Rank* rank);
  Status LoadEvents(const AttemptMeta& attempt, std::uint32_t number, Rank* rank);
  Status Replay(const AttemptMeta& attempt, std::uint32_t number, const RankMeta& meta, Rank* rank);
  Result<std::uint64_t> ReplayFrom(const AttemptRank& place, std::uint64_t judged);
  Status DefineFromStore(const AttemptRank& place, Rank* rank);
  TensorDef Definition(const AttemptRank& place, std::uint32_t activation);
  // Adds what the rules have found to the run.
  void Collect(std::uint32_t number, Rank* rank);
  void CompareReplicas(std::uint32_t number, Rank* rank);
  void Tell(std::uint32_t number, Rank* rank, Finding finding);
  void NameFirstOfRun(std::uint32_t number, Attempt* attempt, Finding* finding) const;
  void WriteEvents();
  void Announce(const Unwritten& written);
  std::map<AttemptRank, std::uint64_t> ReadDocument(const std::string& run);
  void ResumeAfterStart();
  void Resume(const std::string& run);
  void Tick();
  void KeepDocuments(bool all);
  void KeepDocument(const std::string& run);
  void ForgetRemoved();
  bool MakeRoom();
  void Forget(std::map<AttemptRank, Rank>::iterator rank);
  void CountActive();

  Store& store_;
  const Clock& clock_;
  const AlarmsOptions options_;

  // The queue has no lock: who commits must not wait for a thread of low priority to be given the processor.
  std::atomic<Item*> newest_{nullptr};                        // owned; `next` is the one before
  std::atomic<std::size_t> queue_bytes_{0}, queue_items_{0};  // judging included
  std::atomic<bool> stopping_{false}, resumed_{false};
  std::chrono::steady_clock::time_point end_at_;  // set before stopping_
  std::condition_variable work_;                  // told without a lock: what is missed is found kWait later
  std::atomic<std::uint64_t> evaluated_{0}, skipped_{0};

  std::mutex mutex_;
  AlarmStatus status_;  // guarded by mutex_

  // Of the own thread:
  std::map<AttemptRank, Rank> ranks_;
  std::map<AttemptId, Attempt> attempts_;
  std::size_t bytes_ = 0;
  std::deque<Unwritten> unwritten_;
  std::set<std::string> unkept_;      // runs whose document is not what was judged
  std::set<std::string> documented_;  // runs that have one
  bool active_changed_ = false;
  std::chrono::steady_clock::time_point documents_at_, removed_at_;
  std::map<AttemptRank, std::vector<TensorDef>> definitions_;  // of the batch at hand

  std::mutex join_mutex_;
  std::thread thread_;
};

}  // namespace statcollect::alarms

#endif  // STATCOLLECT_SERVER_ALARMS_ALARMS_H_
