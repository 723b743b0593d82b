// Evaluates the alarm rules over durable records without delaying ingest: Take puts a batch into a
// bounded queue and returns, and one low-priority thread does the rest. If it cannot keep up,
// statistics are skipped and counted.
//
// An alarm is an event that the collector adds to the run (Store::PutEvents) and then passes to
// followers and the webhook. The document "alarms" of the run says how far each rank was judged:
// lines "attempt rank step". After a restart, a rank's state is rebuilt from its last stored steps
// when its next batch arrives, or at once if stored records have not been judged. Steps up to the
// one in the document add nothing again, and an event always has the same key, so nothing is
// repeated or lost.
//
// Invariant: the state of all ranks takes at most settings.memory_bytes_max, or belongs to a single
// rank. The state of the rank that has been silent longest is dropped first, and rebuilt if the
// rank continues.
//
// Threads: any may call; only the thread of this class uses the store.
#ifndef STATCOLLECT_SERVER_ALARMS_ALARMS_H_
#define STATCOLLECT_SERVER_ALARMS_ALARMS_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/clock.h"
#include "common/thread_annotations.h"
#include "server/alarms/batch_queue.h"
#include "server/alarms/event_writer.h"
#include "server/alarms/judged_documents.h"
#include "server/alarms/rank_state.h"
#include "server/alarms/replica_rule.h"
#include "server/alarms/state_loader.h"
#include "server/control/alarm_settings.h"
#include "server/control/control.h"
#include "server/control/event_feed.h"
#include "server/store/committed_batch.h"
#include "server/store/document_store.h"
#include "server/store/record_writer.h"

namespace statcollect::alarms {

struct AlarmsOptions {
  AlarmSettings settings;
  std::size_t queue_bytes_max = std::size_t{32} << 20;
  // Without records for `pause`, the step is judged except for gradients; after `silence`,
  // completely.
  std::chrono::milliseconds pause{2'000}, silence{30'000};
  std::chrono::milliseconds document_interval{5'000};
  std::chrono::milliseconds drain{500};  // how long Drain continues to judge
  EventFeed* feed = nullptr;             // may be null; must outlive this object
  std::function<void(const FeedEvent&)> notify =
      {};  // called for each alarm; may be empty; must not block
  std::function<void(const std::string& line)> log = [](const std::string&) {};
};

class Alarms {
 public:
  // Borrows all.
  Alarms(DocumentStore& store, RecordWriter& writer, const Clock& clock, AlarmsOptions options);
  ~Alarms();  // calls Drain
  Alarms(const Alarms&) = delete;
  Alarms& operator=(const Alarms&) = delete;

  // Only pushes to a queue; never blocks longer.
  void Take(CommittedBatch batch) noexcept;
  // Judges queued batches for at most options.drain, saves the progress and ends the thread. What
  // is left or arrives later is judged after the next start, as after a crash. Idempotent.
  void Drain();
  AlarmStatus GetStatus();
  // Waits until everything taken so far has been judged. For tests.
  void AwaitIdle();

 private:
  struct Attempt {
    AttemptMeta meta;
    std::optional<ReplicaRule> replicas;  // once every rank of the launch is known
    std::deque<std::pair<std::uint32_t, StepDigest>> waiting;  // of ranks that were judged earlier
    std::optional<StepAndRank> nonfinite;                      // the first one
    std::size_t ranks = 0;                                     // with state in memory
    std::size_t ranks_expected = 0;                            // that record, as they say
  };

  void Run();
  bool MustEnd() const { return stopping_ && clock_.Now() >= end_at_; }
  void Judge(const BatchQueue::Item& item);
  void JudgeStats(const BatchQueue::Item& item, RankState* rank);
  void PublishEvents(const CommittedBatch& batch);
  // Loads the rank's state if necessary. Null if memory has no room for it or it cannot be read.
  RankState* Find(const AttemptMeta& attempt, std::uint32_t rank);
  Status Load(const AttemptRank& place, RankState* rank);
  TensorDef Definition(const AttemptRank& place, std::uint32_t activation);
  // Adds what the rules have found to the run.
  void Collect(std::uint32_t number, RankState* rank);
  void CompareReplicas(std::uint32_t number, RankState* rank);
  void Tell(std::uint32_t number, RankState* rank, Finding finding);
  void NameFirstOfRun(std::uint32_t number, Attempt* attempt, Finding* finding) const;
  void ResumeAfterStart();
  void Resume(const std::string& run);
  void Tick();
  void CloseSilent(std::chrono::steady_clock::time_point now);
  JudgedDocuments::Judged JudgedOf(const std::string& run) const;
  void WriteDocuments(bool all);
  void ForgetRemoved();
  bool MakeRoom();
  void Forget(std::map<AttemptRank, RankState>::iterator rank);
  void CountActive();

  RecordReader& store_;
  const Clock& clock_;
  const AlarmsOptions options_;

  BatchQueue queue_;
  std::atomic<bool> stopping_{false}, resumed_{false};
  std::chrono::steady_clock::time_point end_at_;  // set before stopping_
  std::atomic<std::uint64_t> evaluated_{0}, skipped_{0};

  Mutex mutex_;
  AlarmStatus status_ STATCOLLECT_GUARDED_BY(mutex_);

  // Used only by the thread of this class, except for what is thread-safe:
  EventWriter events_;
  JudgedDocuments documents_;
  StateLoader loader_;
  std::map<AttemptRank, RankState> ranks_;
  std::map<AttemptId, Attempt> attempts_;
  std::size_t bytes_ = 0;
  bool active_changed_ = false;
  std::chrono::steady_clock::time_point documents_at_, removed_at_;
  // Of the current batch.
  std::map<AttemptRank, SharedDefinitions> definitions_;

  Mutex join_mutex_;
  std::thread thread_;  // joined with join_mutex_ held
};

}  // namespace statcollect::alarms

#endif  // STATCOLLECT_SERVER_ALARMS_ALARMS_H_
