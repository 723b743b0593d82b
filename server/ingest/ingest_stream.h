// One stream of the protocol (docs/protocol.md), without its transport: hello, batches and goodbye
// come in; welcome and acknowledgements go out.
//
// States: awaiting hello -> admitting (on the admission worker) -> open -> leaving (the goodbye is
// being written); ended from any of them. A stream ends once: gracefully, after its queued items
// are durable and acknowledged, or at once (fenced, failed, cancelled).
//
// Threads: the transport calls OnMessage with one message at a time, and reads the next one only
// when it is asked to: after a batch, once that has been decoded and queued, which a thread of the
// gate may do. Everything else may be called from any thread. The mutex is not held over
// validation, registry, store or committer.
#ifndef STATCOLLECT_SERVER_INGEST_INGEST_STREAM_H_
#define STATCOLLECT_SERVER_INGEST_INGEST_STREAM_H_

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>

#include "common/clock.h"
#include "common/project.h"
#include "common/records.h"
#include "common/status.h"
#include "common/thread_annotations.h"
#include "server/ingest/byte_rates.h"
#include "server/ingest/committer.h"
#include "server/ingest/counters.h"
#include "server/ingest/definition_budget.h"
#include "server/ingest/memory_gate.h"
#include "server/ingest/project_quotas.h"
#include "server/ingest/registry.h"
#include "server/ingest/session.h"
#include "server/store/committed_batch.h"
#include "server/store/record_writer.h"
#include "server/store/run_reader.h"
#include "statcollect/v1/ingest.pb.h"

namespace statcollect {

// The wire, as a stream uses it. Start* return at once and never call back before they have
// returned. At most one read and one write are in flight. Finish is called once, last, and never
// during a write; the transport may be gone as soon as it was called.
class StreamTransport {
 public:
  virtual ~StreamTransport() = default;
  virtual void StartRead() = 0;
  virtual void StartWrite(v1::CollectorMessage message) = 0;
  virtual void Finish(const Status& status) = 0;
};

// Shared by all streams; outlives them.
struct StreamContext {
  RunReader& reader;
  RecordWriter& writer;
  const Clock& clock;
  SessionRegistry& registry;
  Committer& committer;
  IngestCounters& counters;
  // Runs the function later, on a thread that may block; those of a run's rank in this order.
  std::function<void(const std::string& run, std::uint32_t rank, std::function<void()>)> admit;
  MemoryGates& memory;              // of batches that are not durable yet
  DefinitionBudget& definitions;    // of the open sessions
  std::size_t streams_max = 4096;   // that gRPC has open, welcomed or not
  ByteRates* rates = nullptr;       // of what is read; null: as fast as it comes
  ProjectQuotas* quotas = nullptr;  // of projects' disk; null: none
  std::function<void(CommittedBatch)> committed =
      {};  // may be empty; called by the committer, must not block
};

// Whose records a stream brings: an agent's, or those of a rank that is copied from another
// collector (transfer.proto).
enum class StreamOf { kAgent, kCopy };

class IngestStream final : public OpenStream, public std::enable_shared_from_this<IngestStream> {
 public:
  IngestStream(const StreamContext& context, StreamTransport* transport,
               std::string project = std::string(kDefaultProject), StreamOf of = StreamOf::kAgent);

  // --- from the transport
  void Start();
  // Takes the records out of the message, which may be reused as soon as the transport is asked to
  // read.
  void OnMessage(v1::AgentMessage* message);
  void OnReadsDone();  // the agent closed its side, or the stream broke
  void OnWriteDone(bool ok);
  void OnCancel();

  // --- from others
  void EndStream(const Status& why) override;  // at once
  void RecordSteps(const std::string& steps) override;
  void Capture(const CaptureRequest& request) override;
  void RecordFull(const FullSteps& steps) override;
  // Ends gracefully: reads nothing more.
  void Drain();
  // Ends the stream if its hello is overdue.
  void CheckHello(std::chrono::steady_clock::time_point now, std::chrono::milliseconds timeout);

 private:
  enum class Phase { kAwaitingHello, kAdmitting, kOpen, kLeaving };
  enum class How { kGracefully, kAtOnce };
  // Numbers that a commit adds to the counters.
  struct Tally {
    std::uint64_t seq = 0, records = 0, dropped = 0;
    bool goodbye = false;
  };

  void TakeHello(const v1::Hello& hello);
  Status CheckQuota();
  // `copy`: number of the launch; 0: an agent's.
  void Admit(const SessionInfo& info, std::optional<std::uint64_t> late_from, std::uint32_t copy);
  void Welcome(Admission admission, std::unique_ptr<IngestSession> session);
  void TakeBatch(v1::Batch* wire);
  void DecodeBatch(const std::shared_ptr<v1::Batch>& wire, std::size_t wire_bytes,
                   MemoryGate::Share memory);
  void TakeGoodbye(const v1::Goodbye& goodbye);
  void Submit(IngestSession::Accepted accepted, MemoryGate::Share memory, bool goodbye);
  std::shared_ptr<CommittedBatch> Announcement(std::optional<RecordBatch>& batch, bool goodbye);
  void OnCommitted(const Status& status, const Tally& tally);
  void ReadNext();

  void End(const Status& status, How how);
  // Writes what is due, or ends the stream once everything is settled. Releases the lock.
  void Advance(MutexLock& lock) STATCOLLECT_REQUIRES(mutex_);
  void EndLocked(const Status& status, How how) STATCOLLECT_REQUIRES(mutex_);
  void WriteLocked() STATCOLLECT_REQUIRES(mutex_);

  StreamContext context_;
  const std::string project_;
  const StreamOf of_;
  const std::chrono::steady_clock::time_point opened_;

  // Set by Welcome before the first batch is read; afterwards used only for the message at hand.
  std::unique_ptr<IngestSession> session_;
  std::unique_ptr<StreamWriter> writer_;
  std::shared_ptr<CommitLane> lane_;

  Mutex mutex_;
  StreamTransport* const transport_;  // until finished_
  Phase phase_ STATCOLLECT_GUARDED_BY(mutex_) = Phase::kAwaitingHello;
  std::optional<AttemptMeta> attempt_ STATCOLLECT_GUARDED_BY(mutex_);  // set once admitted
  bool unused_ STATCOLLECT_GUARDED_BY(mutex_) =
      false;  // the goodbye said that nothing was recorded
  std::uint32_t rank_ STATCOLLECT_GUARDED_BY(mutex_) = 0;
  std::uint64_t durable_seq_ STATCOLLECT_GUARDED_BY(mutex_) = 0;
  bool late_ STATCOLLECT_GUARDED_BY(mutex_) = false;  // as the hello said
  // Definitions, at the welcome.
  std::uint32_t activations_known_ STATCOLLECT_GUARDED_BY(mutex_) = 0,
                                   layouts_known_ STATCOLLECT_GUARDED_BY(mutex_) = 0;
  std::uint32_t in_flight_ STATCOLLECT_GUARDED_BY(mutex_) = 0;  // items submitted and not done
  // Directives to send to the agent; those still due when the stream ends are discarded.
  std::optional<std::string> steps_due_ STATCOLLECT_GUARDED_BY(mutex_);
  std::deque<CaptureRequest> captures_due_ STATCOLLECT_GUARDED_BY(mutex_);
  std::deque<FullSteps> full_due_ STATCOLLECT_GUARDED_BY(mutex_);
  bool welcome_due_ STATCOLLECT_GUARDED_BY(mutex_) = false,
                    ack_due_ STATCOLLECT_GUARDED_BY(mutex_) = false,
                    writing_ STATCOLLECT_GUARDED_BY(mutex_) = false;
  std::optional<Status> end_ STATCOLLECT_GUARDED_BY(mutex_);
  bool end_at_once_ STATCOLLECT_GUARDED_BY(mutex_) = false, finished_
                                                            STATCOLLECT_GUARDED_BY(mutex_) = false;
};

}  // namespace statcollect

#endif  // STATCOLLECT_SERVER_INGEST_INGEST_STREAM_H_
