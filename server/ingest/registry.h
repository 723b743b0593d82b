// Decides who may write: assigns every hello to an attempt of the run, knows the open streams, and
// fences. The rules are the table in docs/protocol.md.
//
// Threads: any. mutex_ guards memory only: no request to the store is made with it held, because
// one may take seconds. What must not happen at the same time takes turns: the hellos of one rank
// of a run, and decisions about one run. A decision asks the catalogue alone. From its decision
// until its stream is in writers_ a rank is arriving: it claims its place and writes it down,
// without the run's turn. Only who removes the run waits for it. So no two hellos decide on the
// same state, and a part of the store that does not answer holds up only its own ranks.
//
// Streams are ended after all turns. Removing attempts only hides them; their data, which may take
// minutes, is deleted elsewhere (Purger).
#ifndef STATCOLLECT_SERVER_INGEST_REGISTRY_H_
#define STATCOLLECT_SERVER_INGEST_REGISTRY_H_

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/clock.h"
#include "common/records.h"
#include "common/status.h"
#include "common/thread_annotations.h"
#include "server/control/control.h"
#include "server/ingest/committer.h"
#include "server/ingest/full_steps.h"
#include "server/ingest/turns.h"
#include "server/store/capture_requests.h"
#include "server/store/store.h"
#include "server/transfer/run_copies.h"

namespace statcollect {

// The registry's view of a stream. EndStream is called without the registry's mutex, from any
// thread, at most once per Open; it must not wait for the stream.
class OpenStream {
 public:
  virtual ~OpenStream() = default;
  virtual void EndStream(const Status& why) = 0;
  // Makes the agent record tensors only in these steps (a StepSet's text).
  virtual void RecordSteps(const std::string& steps) = 0;
  // Makes the agent capture what the request names.
  virtual void Capture(const CaptureRequest& request) = 0;
  // Announces steps whose full statistics all ranks record.
  virtual void RecordFull(const FullSteps& steps) = 0;
};

// The result of a hello: the stream's place and the rank's state, whose watermark says where to
// continue.
struct Admission {
  AttemptMeta attempt;
  RankMeta meta;
  std::shared_ptr<CommitLane> lane;
  bool resumed = false;
  std::optional<std::string> steps;      // the last RecordSteps of the attempt
  std::vector<CaptureRequest> captures;  // that the rank may not know yet
  std::optional<FullSteps> full;         // the last choice that was announced to the attempt
};

// If the launcher is unknown, a rank whose hello comes after all others have said goodbye still
// belongs to their launch for this long: ranks do not start at the same time, and short ones may
// have finished by then.
inline constexpr std::chrono::seconds kLateRankGrace{60};

// An agent that lost its connection retries every few seconds; after this time it counts as gone.
inline constexpr std::chrono::seconds kAwayGrace{60};

class SessionRegistry final : public RunCopies {
 public:
  using LateFrom = std::optional<std::uint64_t>;

  using RunChanged = std::function<void(const std::string& run)>;
  // `retired` is called when attempts have been retired; it must not wait. `changed` is called,
  // outside all turns, when a stream of a run was opened or closed, or the run was removed or kept.
  SessionRegistry(
      Store& store, const Clock& clock, Committer& committer, std::function<void()> retired = [] {},
      RunChanged changed = [](const std::string&) {})
      : store_(store),
        clock_(clock),
        committer_(committer),
        retired_(std::move(retired)),
        changed_(std::move(changed)),
        start_(clock.Now()) {}

  // Admits a session. On success the rank is in the catalogue and `stream` is its open stream; an
  // older stream is fenced and will not write anything more. kAlreadyExists: the name is taken, and
  // the policy is to refuse. `late_from`: the session's process has ended and left its records from
  // this number on in a spill file; the session resumes in whichever attempt has it.
  // kFailedPrecondition: no attempt has it, and the number is not 1.
  Result<Admission> Open(const SessionInfo& info, std::shared_ptr<OpenStream> stream,
                         LateFrom late_from = {});
  // The same for one rank of a run that is copied here; `number`: of its launch. kAlreadyExists:
  // the rank is complete, or of another process.
  Result<Admission> OpenCopy(SessionInfo info, std::uint32_t number,
                             std::shared_ptr<OpenStream> stream);
  // The stream accepts nothing more; its queued items are still written. No effect if a different
  // stream has replaced it.
  void Close(AttemptId attempt, std::uint32_t rank, const OpenStream* stream);

  // Applies to the current and later streams of the run's newest attempt. See CollectorControl.
  Result<std::uint32_t> RecordSteps(const std::string& run, const std::string& steps);

  // Announces the steps to all ranks of the attempt: those that are connected, and, if they have no
  // end, those that connect later.
  void AnnounceFull(AttemptId attempt, const FullSteps& steps);
  // Asks the first rank of the run's newest attempt for steps in full soon, because of something in
  // `step`.
  void RequestFull(const std::string& run, std::uint64_t step);

  // Removes the attempt of a program that failed before it recorded anything, if none of its ranks
  // has recorded anything, all have said goodbye, and the run is not kept. May wait, as Open.
  void RemoveUnused(const AttemptMeta& attempt);

  // See CollectorControl.
  Result<RequestedCapture> RequestCapture(const std::string& run,
                                          const std::vector<std::uint32_t>& ranks,
                                          const CaptureSpec& spec);

  bool IsOpen(AttemptId attempt, std::uint32_t rank);
  // For a rank without goodbye and without an open stream: whether it was connected less than
  // kAwayGrace ago, or the collector was started less than kAwayGrace ago.
  bool MayComeBack(AttemptId attempt, std::uint32_t rank);
  std::uint32_t OpenStreams();
  bool HasOpenStream(const std::string& run);
  // When it returns, no query finds the run, and its name is free.
  // With `last_write_unix_nanos`, as retention calls it: kFailedPrecondition if something was
  // written after it, or the run is kept.
  Result<DeletedRun> DeleteRun(const std::string& run, bool force,
                               std::optional<std::int64_t> last_write_unix_nanos = std::nullopt);
  // As Store::KeepRun. A run that was kept when it returns is not removed by a DeleteRun for
  // retention, also not by one under way.
  Status KeepRun(const std::string& run, bool keep) override;

  // --- copies of other stores' runs (registry_copies.cc)
  Status BeginCopy(const std::string& run, std::span<const AttemptMeta> attempts) override;
  Status PutEvent(const std::string& run, std::uint32_t number,
                  const CollectorEvent& event) override;
  Status PutRunDocument(const std::string& run, const std::string& name,
                        const std::string& content) override;
  Status PutCopiedRank(std::uint32_t number, const RankMeta& meta) override;
  std::uint32_t StreamsOpen(const std::string& run) override;

 private:
  using AttemptRank = std::pair<AttemptId, std::uint32_t>;
  // The latest stream of a place. Its lane outlives it, because queued items may still be in
  // flight.
  struct Writer {
    std::string run;
    SessionId session{};
    std::shared_ptr<CommitLane> lane;
    std::shared_ptr<OpenStream> stream;  // nullptr when closed
    std::chrono::steady_clock::time_point closed_at{};
  };
  // Streams to end after all turns.
  struct Ending {
    std::shared_ptr<OpenStream> stream;
    Status why;
  };
  using Endings = std::vector<Ending>;

  // Run, and rank or one of these. Who takes several takes them in this order: rank, run, its
  // documents. Never with mutex_ held.
  using TurnKey = std::pair<std::string, std::int64_t>;
  static constexpr std::int64_t kWholeRun = -1, kDocuments = -2;
  using Turn = Turns<TurnKey>::Turn;
  // While it is held, the rank's attempt is not removed.
  using Arrival = std::shared_ptr<void>;
  // Where a rank goes.
  struct Plan {
    AttemptMeta attempt;
    bool resumes = false;
    std::vector<AttemptMeta> fenced;  // where the rank's older streams end
    Arrival arrival;
  };
  // What the store knows of a rank of a run.
  struct Known {
    std::optional<SessionId> newest;   // its session in the newest attempt
    std::optional<AttemptMeta> older;  // the attempt other than the newest that has this session
  };

  // In the run's turn and the rank's.
  Plan Arrive(const AttemptMeta& attempt, std::uint32_t rank);
  // In the run's turn. Returns when nobody is arriving at them.
  void AwaitArrivals(const std::vector<AttemptMeta>& attempts);

  // In the rank's turn.
  Result<Plan> Decide(const SessionInfo& info, LateFrom late_from, Endings* endings);
  Result<Plan> DecideCopy(SessionInfo* info, std::uint32_t number);
  Result<Admission> Admit(const SessionInfo& info, const Plan& plan,
                          std::shared_ptr<OpenStream> stream, Endings* endings);
  Result<Known> FindKnown(const SessionInfo& info, const std::vector<AttemptMeta>& attempts);
  // The rank arrives at the attempt of a copy.
  Result<Plan> ArriveAt(const std::string& run, std::uint32_t number, std::uint32_t rank);
  // Increases when this collector makes or removes an attempt of the run. (Seldom also for another
  // run.)
  std::uint64_t Changes(const std::string& run);
  void CountChange(const std::string& run);

  // In the run's turn, too.
  Result<Plan> DecideInTurn(const SessionInfo& info, const std::vector<AttemptMeta>& attempts,
                            const Known& known, LateFrom late_from, Endings* endings);
  Result<Plan> Create(const SessionInfo& info, std::uint32_t number);
  Result<Plan> ApplyPolicy(const SessionInfo& info, const std::vector<AttemptMeta>& attempts,
                           Endings* endings);
  // kAlreadyExists, and nothing is removed: the run is kept, or ranks of another launch are
  // sending.
  Result<Plan> Replace(const SessionInfo& info, const std::vector<AttemptMeta>& attempts,
                       Endings* endings);
  // Completes the request's ranks, or says why the request cannot be served.
  Status CheckCapture(const std::string& attempted, CaptureRequest* request);
  std::vector<std::shared_ptr<OpenStream>> StreamsOfLocked(AttemptId attempt) const
      STATCOLLECT_REQUIRES(mutex_);
  using Sessions = std::map<std::uint32_t, SessionId>;  // by rank
  using AttemptPart = std::pair<AttemptId, std::size_t>;
  // Whether an attempt that is not its run's newest has this session. Its sessions do not change
  // any more.
  Result<bool> HasSession(AttemptId older, const SessionInfo& info);
  void ForgetSessionsLocked(AttemptId attempt) STATCOLLECT_REQUIRES(mutex_);
  Result<bool> MayJoin(const SessionInfo& info, const AttemptMeta& attempt);
  // Whether a rank that has said goodbye did so less than kLateRankGrace ago. By the steady clock,
  // because the wall clock may be set; by the wall clock where it was another collector, or this
  // one before its start, that heard the goodbye.
  bool EndedLatelyLocked(const AttemptRank& place, const RankMeta& meta) const
      STATCOLLECT_REQUIRES(mutex_);
  Status NameTaken(const SessionInfo& info, const std::vector<AttemptMeta>& attempts);
  // After it returns, nothing of the place is written. Its stream, if open, is added to `endings`.
  // In the rank's turn, or in the run's while nobody is arriving.
  void Retire(const AttemptRank& place, const Status& why, Endings* endings);
  // The rank's streams in older attempts, here and at other collectors.
  Status FenceOlder(const SessionInfo& info, const std::vector<AttemptMeta>& older,
                    Endings* endings);
  // In the run's turn, while nobody is arriving.
  Status Drop(const std::vector<AttemptMeta>& attempts, const Status& why, Endings* endings);
  void RetireAll(const AttemptMeta& attempt, const Status& why, Endings* endings);
  // The attempt's capture requests that name the rank and that it may still serve. Empty if they
  // cannot be read, because that must not keep the rank from being recorded.
  std::vector<CaptureRequest> CapturesFor(const Admission& admission);
  Status CheckUnchanged(const std::vector<AttemptMeta>& attempts,
                        std::int64_t last_write_unix_nanos);
  std::size_t OpenStreamsLocked(const std::string& run) const STATCOLLECT_REQUIRES(mutex_);
  bool IsArrivingLocked(AttemptId attempt) const STATCOLLECT_REQUIRES(mutex_);
  bool MayComeBackLocked(const AttemptRank& place) const STATCOLLECT_REQUIRES(mutex_);

  Store& store_;
  const Clock& clock_;
  Committer& committer_;
  const std::function<void()> retired_;
  const RunChanged changed_;
  const std::chrono::steady_clock::time_point start_;
  Mutex mutex_;
  Turns<TurnKey> turns_;
  ConditionVariable arrived_;
  std::set<AttemptRank> arriving_ STATCOLLECT_GUARDED_BY(mutex_);
  std::array<std::uint64_t, 1024> changes_
      STATCOLLECT_GUARDED_BY(mutex_){};  // by the hash of a run
  std::map<AttemptRank, Writer> writers_ STATCOLLECT_GUARDED_BY(mutex_);
  std::map<AttemptId, std::string> steps_ STATCOLLECT_GUARDED_BY(mutex_);  // set by RecordSteps
  std::map<AttemptId, FullSteps> full_
      STATCOLLECT_GUARDED_BY(mutex_);  // without an end, announced last
  // Read once for all ranks of a launch; about 64 bytes a rank.
  static constexpr std::size_t kOlderAttemptsMax = 256;
  std::map<AttemptPart, Sessions> older_sessions_ STATCOLLECT_GUARDED_BY(mutex_);
  std::uint64_t sessions_forgotten_ STATCOLLECT_GUARDED_BY(mutex_) = 0;  // times
};

}  // namespace statcollect

#endif  // STATCOLLECT_SERVER_INGEST_REGISTRY_H_
