// Sends batches to the collector over one resumable stream: says hello, keeps every batch until it
// is acknowledged as durable, reconnects after a failure with growing waits, resends what the
// collector lacks, and says goodbye.
//
// With a spill file, batches for which the window has no room go to the file, and from there to the
// window in the same order. A new file begins with everything that the window holds, so that the
// file is complete on its own: if the process ends before the collector has all of it, the file
// stays, and `statctl move import spill` sends it.
//
// Two things say what happens next: where it stands with the collector (exporter_state.h, with the
// table of transitions), and how long Finish is still willing to wait (Closing, which only grows).
//
// Threads: its own thread (the sender) drives the stream and reads the file; the transport's thread
// calls the receiver; the batcher submits, tends and writes the file; any thread may wait, or
// finish after the batcher has stopped. All shared state is guarded by one mutex, which is never
// held during a call that may block.
#ifndef STATCOLLECT_AGENT_EXPORT_EXPORTER_H_
#define STATCOLLECT_AGENT_EXPORT_EXPORTER_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "agent/export/backoff.h"
#include "agent/export/batch_sink.h"
#include "agent/export/exporter_state.h"
#include "agent/export/log_limiter.h"
#include "agent/export/send_window.h"
#include "agent/export/spill_file.h"
#include "agent/export/spill_queue.h"
#include "agent/export/spill_writer.h"
#include "agent/export/transport.h"
#include "agent/staging/capture_queue.h"
#include "agent/staging/ledger.h"
#include "agent/staging/registry.h"

#include "common/thread_annotations.h"

namespace statcollect {

struct ExporterOptions {
  std::string collector;  // address, for messages
  BackoffOptions backoff;
  std::uint64_t seed = 0;                            // of the backoff's random part
  std::chrono::milliseconds welcome_timeout{20000};  // for one attempt to connect
  const Definitions* definitions = nullptr;  // of the batches, to send them again after a loss
  SpillOptions spill = {};
  LogLevel away = LogLevel::kWarning;  // of lines that say that the collector cannot be reached
  // From the transport's thread, without locks held; must not block. May be empty.
  std::function<void(const Directive&)> on_directive = {};
  // Receives events of the spill file, to be recorded in the run. From the thread that submits,
  // without locks held. May be empty.
  std::function<void(const char* kind, const std::string& text)> on_event = {};
};

// Whether the session is over: no other attempt with it may succeed. What the collector does not
// have by then stays in the spill file, if there is one. Until WaitForWelcome returns, a refusal of
// access ends it too (kPermissionDenied, kUnauthenticated, kUnimplemented); afterwards it is tried
// again.
bool IsFatal(Code code);

class Exporter final : public BatchSink, private StreamReceiver {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  // `on_room` is called, without locks held, when the window may have room again, and when the
  // exporter has failed.
  Exporter(SessionInfo session, ExporterOptions options, Transport* transport, Ledger* ledger,
           LogLimiter* log, std::function<void()> on_room);
  ~Exporter() override;

  // kInvalidArgument: the spill directory cannot be created or written to.
  Status CheckSpill() const { return file_ ? file_->CheckDirectory() : Status::Ok(); }
  std::string SpillRemark() const { return file_ ? file_->Remark() : std::string(); }
  void Start();
  // Waits for the collector's first answer. OK: a welcome. kUnavailable: the deadline has passed
  // or, unless `patient`, the first attempt has failed; the exporter keeps trying. Other codes are
  // fatal.
  Status WaitForWelcome(TimePoint deadline, bool patient);

  // Writes waiting batches to the spill file, frees its acknowledged part, and removes it when all
  // is sent.
  TimePoint Tend() override;
  bool HasRoom() override;
  std::size_t BatchBytesMax() override;
  std::optional<bool> TakesCaptures() override;
  void Submit(RecordBatch batch, std::size_t bytes) override;
  bool Failed() override;
  Status failure();  // OK, or why it stopped for good
  ExporterState state();

  // Waits until everything submitted is durable and the goodbye is answered, at most until the
  // deadline; then ends the thread. Records left over stay pending in the spill file. Without a
  // spill file they are counted as dropped; a connected collector learns their number from a
  // goodbye sent up to kLastWord after the deadline (not with TimePoint::min()). Returns
  // kDeadlineExceeded or the fatal status if records were left over. Nothing may be submitted
  // afterwards. Idempotent. `goodbye`: false if the process failed; the collector then shows the
  // run as interrupted.
  Status Finish(TimePoint deadline, bool goodbye = true);
  // The goodbye says that the program failed before it recorded anything. Before Finish.
  void MarkUnused() { unused_ = true; }
  static constexpr std::chrono::milliseconds kLastWord{250};
  // Instead of waiting any longer for a Finish that hangs: nothing more is sent. The exporter must
  // not be destroyed.
  void Leave();
  // Changes while the spill file is read or written, and while Finish runs. Any thread.
  std::uint64_t activity() const {
    return finished_parts_ + (file_ == nullptr ? 0 : file_->progress());
  }

  struct Progress {
    std::uint64_t streams = 0;         // welcomes received
    std::uint64_t lost_after_ack = 0;  // records that the collector acknowledged and later lacked
    std::uint64_t spilled = 0;         // pending records in the spill file
  };
  Progress progress();

 private:
  // What is left to wait for; grows only. Set by Finish and Leave.
  enum class Closing {
    kNot,         // the training runs
    kDelivering,  // nothing more is submitted: everything is to become durable, then the goodbye
    kGivingUp,    // the deadline has passed: only the goodbye, with what is lost
    kNow,         // nothing: streams are cancelled, and no other is opened
  };

  void OnWelcome(const Welcome& welcome) override;
  void OnAck(std::uint64_t durable_seq) override;
  void OnDirective(const Directive& directive) override {
    if (options_.on_directive) options_.on_directive(directive);
  }
  void OnEnd() override;

  void Run();
  // Runs one stream from hello to end. Returns the collector's final status.
  Status RunStream();
  // Sends until the stream ends.
  void Pump(Stream* stream);
  // Reacts to the end of a stream; true to try again.
  bool HandleEnd(const Status& end);
  void Fail(const Status& status);
  // Wakes all waiters. A transition that is not in the table ends the session with kInternal.
  void MoveLocked(ExporterState to) STATCOLLECT_REQUIRES(mutex_);
  void CloseLocked(Closing closing) STATCOLLECT_REQUIRES(mutex_);
  // What the collector says is wrong: the stream, and with it the session, is over.
  void RejectLocked(const Status& why) STATCOLLECT_REQUIRES(mutex_);
  bool EverWelcomedLocked() const STATCOLLECT_REQUIRES(mutex_) { return progress_.streams > 0; }
  bool NothingLeftLocked() const STATCOLLECT_REQUIRES(mutex_) {
    return closing_ >= Closing::kDelivering && window_.empty() && spill_.empty();
  }
  // Whether the sender has nothing more to deliver, or no time to.
  bool ThroughLocked() const STATCOLLECT_REQUIRES(mutex_) {
    return closing_ >= Closing::kGivingUp || NothingLeftLocked();
  }

  // --- the spill file
  // Whether a new batch may go to the window without overtaking another.
  bool CanPlaceLocked() const STATCOLLECT_REQUIRES(mutex_) {
    return spill_.records() == 0 && window_.HasRoom();
  }
  bool CanLoadLocked() const STATCOLLECT_REQUIRES(mutex_) {
    return spill_.records() > 0 && window_.HasRoom();
  }
  // Moves the next batch from the file to the window. Releases the mutex while reading.
  void LoadLocked() STATCOLLECT_REQUIRES(mutex_);
  void LoseLocked(const spill::FrameHead& frame) STATCOLLECT_REQUIRES(mutex_);
  // Moves the held batch to the window or the file, if one has room.
  void PlaceHeld();
  // Appends the window's batches that are not in the file yet, then `last`. After a failure, the
  // file keeps what was appended before it.
  Status AppendToFile(const SpillQueue::Batch& last);
  spill::Mark MarkLocked() const STATCOLLECT_REQUIRES(mutex_);
  // The deadline of Finish has passed without a spill file: reports the losses to a connected
  // collector.
  void GiveUpLocked() STATCOLLECT_REQUIRES(mutex_);
  // Counters of the goodbye. When giving up, unsent records count as dropped.
  AgentCounters LastCountersLocked() const STATCOLLECT_REQUIRES(mutex_);
  // Forgets everything submitted. All records but the `kept` ones in the file count as dropped;
  // returns the number dropped.
  std::uint64_t DropAllLocked(std::string_view cause, std::uint64_t kept = 0)
      STATCOLLECT_REQUIRES(mutex_);
  // After the end: completes the file. Returns the number of records left in it for the collector.
  std::uint64_t KeepRest();

  EncodedBatch Encode(const RecordBatch& batch);
  // Batches that report `lost` records (if not 0) and send the first `definitions` again.
  std::vector<EncodedBatch> RepairLocked(const DefinitionCounts& definitions,
                                         std::string_view cause, std::uint64_t lost)
      STATCOLLECT_REQUIRES(mutex_);
  // The store lacks numbers that are not held any more: tells it so, with the definitions that went
  // with them. Returns how many more records were dropped to make room for it.
  std::uint64_t TellMissingLocked(const StoreIdentity& store, std::uint64_t missing)
      STATCOLLECT_REQUIRES(mutex_);
  void WaitBackoff();
  Status Explain(const Status& end) const;

  const SessionInfo session_;
  const ExporterOptions options_;
  Transport* const transport_;
  Ledger* const ledger_;
  LogLimiter* const log_;
  std::atomic<bool> unused_ = false;
  const std::function<void()> on_room_;

  const std::unique_ptr<SpillFile> file_;  // nullptr: spilling is off

  // Used only by the thread that submits.
  std::vector<Layout> layouts_;
  DefinitionCounts given_;
  SpillWriter writer_;

  Mutex mutex_;
  ConditionVariable changed_;
  SendWindow window_ STATCOLLECT_GUARDED_BY(mutex_);
  Backoff backoff_ STATCOLLECT_GUARDED_BY(mutex_);
  ExporterStates state_ STATCOLLECT_GUARDED_BY(mutex_);
  Closing closing_ STATCOLLECT_GUARDED_BY(mutex_) = Closing::kNot;
  Stream* stream_ STATCOLLECT_GUARDED_BY(mutex_) = nullptr;  // while one is open
  bool stream_over_ STATCOLLECT_GUARDED_BY(mutex_) = false;  // it brings and takes nothing more
  // Why no other stream may be opened, though the state is not kFailed yet: what is wrong with the
  // answers.
  Status rejected_ STATCOLLECT_GUARDED_BY(mutex_);
  Status fatal_ STATCOLLECT_GUARDED_BY(mutex_);  // why the state is kFailed
  std::optional<Status> last_failure_
      STATCOLLECT_GUARDED_BY(mutex_);                              // of the last attempt to connect
  std::int64_t attempt_start_ STATCOLLECT_GUARDED_BY(mutex_) = 0;  // as the last welcome said
  StoreIdentity store_ STATCOLLECT_GUARDED_BY(mutex_);             // as the last welcome said
  bool say_goodbye_ STATCOLLECT_GUARDED_BY(mutex_) = true;
  bool retry_now_ STATCOLLECT_GUARDED_BY(mutex_) =
      false;  // Finish: the next attempt waits for nothing
  bool quiet_ STATCOLLECT_GUARDED_BY(mutex_) =
      true;  // until WaitForWelcome returns: its caller logs instead
  Status result_ STATCOLLECT_GUARDED_BY(finish_mutex_);  // of Finish
  Progress progress_ STATCOLLECT_GUARDED_BY(mutex_);
  DefinitionCounts added_
      STATCOLLECT_GUARDED_BY(mutex_);  // given by the batches that were submitted
  SpillQueue spill_ STATCOLLECT_GUARDED_BY(mutex_);
  std::uint64_t last_step_ STATCOLLECT_GUARDED_BY(mutex_) = 0;         // submitted
  std::optional<bool> takes_captures_ STATCOLLECT_GUARDED_BY(mutex_);  // as the last welcome said
  std::thread thread_;
  Mutex finish_mutex_;  // one Finish at a time
  std::atomic<std::uint64_t> finished_parts_{0};
};

}  // namespace statcollect

#endif  // STATCOLLECT_AGENT_EXPORT_EXPORTER_H_
