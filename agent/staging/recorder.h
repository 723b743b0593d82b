// The training threads' side of the agent: knows the current step, gives each observed tensor its identity,
// its place in the step's order and a slot, and queues everything else. Whoever computes fills the slot
// between Begin and Commit, at once or later (slot_filler.h).
//
// Invariants: (1) An identity is recorded at most once in a step. (2) Steps never decrease; no tensor of a
// step is reserved after the step's end. (3) Everything handed over is in the ledger, whether it was kept or
// lost. Threads: any. One mutex is held for a few hundred nanoseconds a call, never while computing, waiting
// or talking to anybody.
#ifndef STATCOLLECT_AGENT_STAGING_RECORDER_H_
#define STATCOLLECT_AGENT_STAGING_RECORDER_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "agent/staging/capture_queue.h"
#include "agent/staging/exponent_spec.h"
#include "agent/staging/ledger.h"
#include "agent/staging/registry.h"
#include "agent/staging/side_queue.h"
#include "agent/staging/staging_ring.h"
#include "agent/staging/waker.h"
#include "common/capture_spec.h"
#include "common/clock.h"
#include "common/step_set.h"

namespace statcollect {

// Records in a batch, at most; when so many wait, the batcher is woken.
inline constexpr std::size_t kBatchRecords = 2048;

class Recorder {
 public:
  struct Options {
    StepSet steps;  // in which tensors are recorded; tensors of Mode::kInit always are
    std::size_t slots = 32768;
    std::uint32_t sketch = 16;
    std::uint32_t samples = 0;
    std::vector<CaptureSpec> captures = {};    // whose raw values are kept
    std::vector<ExponentSpec> exponents = {};  // of what is recorded, whose exponents are counted
  };
  static constexpr std::size_t kEventTextBytesMax = 16u << 10;
  static constexpr std::size_t kEventFieldBytesMax = 4u << 10;
  static constexpr std::size_t kEventFieldsMax = 64;
  static constexpr std::size_t kAddedSettingsMax = 4000;
  static constexpr std::size_t kSettingBytesMax = 16u << 10;

  Recorder(const Options& options, const Clock* clock, Ledger* ledger, Waker* batcher);

  Result<std::uint32_t> Intern(const IdentityView& identity);
  // Reserves a slot for a tensor of this dtype and shape under the identity, in the current step. *slot is
  // nullptr, with status OK, if the step is not wanted or the record was lost (and counted).
  // kInvalidArgument: unknown handle, or observed before in this step. `capture`, if not null, is set if the
  // tensor's raw values are wanted; the caller hands them to captures(), or says MissCapture. The slot's
  // `exponents` are there if they are to be counted.
  Status Begin(std::uint32_t handle, DType dtype, std::span<const std::int64_t> shape, Slot** slot,
               std::optional<CaptureTarget>* capture = nullptr);
  // As above; `next_call` counts the call index instead of taking identity.call.
  Status Begin(const IdentityView& identity, bool next_call, DType dtype, std::span<const std::int64_t> shape,
               Slot** slot, std::optional<CaptureTarget>* capture = nullptr);
  // Hands over the slot, and what was counted of its exponents as a record of its own.
  void Commit(Slot* slot);
  // Instead of Commit: the tensor could not be computed, for this cause.
  void GiveUp(Slot* slot, std::string_view cause);

  // A tensor that is going to be computed whenever a CUDA graph is replayed. Nothing is recorded now.
  struct Captured {
    std::uint32_t root = 0;  // handle of the identity with call 0
    std::uint32_t call = 0, layout = 0, order = 0;
  };
  // Errors as Begin, and kResourceExhausted; may be observed in this step as well.
  Status Capture(std::uint32_t handle, DType dtype, std::span<const std::int64_t> shape, Captured* out);
  Status Capture(const IdentityView& identity, bool next_call, DType dtype,
                 std::span<const std::int64_t> shape, Captured* out);
  // Fills in activation, layout, step and order of a captured tensor's record in a step that may be over,
  // under its identity with this call index, or with the next free one of `call + stride`, ... False: it was
  // lost, and counted.
  bool Replay(const Captured& captured, std::uint32_t call, std::uint32_t stride, std::uint64_t step,
              ObservedTensor* record);
  // n records that Replay has let in, or that it never heard of, are lost.
  void LoseReplayed(std::string_view cause, std::uint64_t n = 1) { ledger_->Drop(cause, n); }
  void MissReplayed(std::string_view cause, std::uint64_t n = 1) { ledger_->ProduceDropped(cause, n); }
  // A place for what replays have recorded so far in the current step: OpenGate, once it is all there. Null
  // if there is no free slot, or records are refused.
  Slot* Gate();
  void OpenGate(Slot* gate);
  void WakeBatcher() { batcher_->Wake(); }  // the filler has something to come

  // `step`: nothing means the current one; it may be one that is over, never one to come.
  Status LogScalar(std::string_view name, double value, std::uint32_t micro_batch,
                   std::optional<std::uint64_t> step = std::nullopt);
  Status LogEvent(std::string_view kind, std::string_view text,
                  const std::map<std::string, std::string>& fields,
                  std::optional<std::uint64_t> step = std::nullopt);
  // In the current step; `record.step` is not looked at. kInvalidArgument: names, bits, negative bytes.
  Status LogMemory(MemoryRecord record);
  // `step` as LogScalar. kInvalidArgument: the name, more valid elements than there are.
  Status LogDensity(DensityRecord record, std::optional<std::uint64_t> step = std::nullopt);
  // Settings known only now. kResourceExhausted: more than kAddedSettingsMax names in all; those before were
  // taken.
  Status AddConfig(const std::map<std::string, std::string>& settings);
  // *gate, if not null, becomes a gate behind the step's last record (or null, as from Gate).
  void EndStep(Slot** gate = nullptr);
  Status SetStep(std::uint64_t step, Slot** gate = nullptr);
  std::uint64_t step() const;
  bool StepWanted() const;
  // In which steps tensors are recorded from the next step on.
  void RecordSteps(StepSet steps);

  // The raw values of what matches are wanted. `request`: the collector's number of it; one that came before
  // is let be. What cannot be captured any more is told at once, by an event.
  void KeepValues(CaptureSpec spec, const std::string& request);
  // Why nothing was captured although Begin asked for it, or for a request that makes no sense.
  void MissCapture(std::uint64_t step, const std::string& requests, const std::string& activation,
                   const std::string& why);
  void MissCapture(const CaptureTarget& target, const std::string& why);
  // Tells what is still to be captured that it will not be: the run ends.
  void EndCaptures();

  // From now on records are counted as dropped for this cause, and nothing is computed. The first cause
  // stays.
  void Refuse(std::string_view cause);
  // Counts everything that still waits here as dropped. Precondition: refused, and the batcher has stopped.
  void DropRest(std::string_view cause);

  std::uint32_t sketch() const { return sketch_; }  // sums and samples of each record
  std::uint32_t samples() const { return samples_; }

  // For the batcher.
  StagingRing& ring() { return ring_; }
  SideQueue& side() { return side_; }
  CaptureQueue& captures() { return queue_; }
  const Definitions& definitions() const { return definitions_; }

 private:
  Status CaptureLocked(std::uint32_t handle, DType dtype, std::span<const std::int64_t> shape, Captured* out);
  Slot* GateLocked(std::uint64_t next);
  // A wish for raw values.
  struct PendingCapture {
    CaptureSpec spec;
    std::string request;   // empty: the program's own
    bool matched = false;  // in any step
  };

  Status BeginLocked(std::uint32_t handle, DType dtype, std::span<const std::int64_t> shape, Slot** slot,
                     std::optional<CaptureTarget>* capture);
  void BeginStepLocked(std::uint64_t step);
  bool WantsLocked(Mode mode) const { return mode == Mode::kInit || steps_.Contains(step_); }
  // The target, if somebody wants the values of this activation in this step.
  std::optional<CaptureTarget> MatchLocked(const TensorKey& key);
  // Room for the exponents of a reserved tensor, if somebody wants them in this step.
  void WantExponentsLocked(const TensorKey& key, Slot* slot);
  void ServePendingCapturesLocked();
  void MissLocked(std::uint64_t step, const std::string& requests, const std::string& activation,
                  const std::string& why);
  void MissLocked(const PendingCapture& wish, const std::string& why);
  // Takes the record or counts it as lost; tells whether the batcher must be woken.
  bool PushLocked(SideRecord record);
  // As above, of a record that the books have; what is refused by now is taken all the same.
  bool PushProducedLocked(SideRecord record);
  void NoteMicroBatchLocked(std::uint32_t micro_batch);
  // Pushes what make(step) gives for the step that is meant, and wakes the batcher if that is due. `make`
  // runs with the mutex held. kInvalidArgument: a step to come.
  template <typename Make>
  Status PushAt(std::string_view what, std::optional<std::uint64_t> step, const Make& make);
  // The step that is meant, or why it cannot be.
  Result<std::uint64_t> StepLocked(std::string_view what, std::optional<std::uint64_t> step) const;

  const Clock* const clock_;
  Ledger* const ledger_;
  Waker* const batcher_;
  const std::uint32_t sketch_, samples_;
  Definitions definitions_;
  StagingRing ring_;
  SideQueue side_;
  CaptureQueue queue_;

  mutable std::mutex mutex_;  // guards the rest, and the order of reservations and pushes
  StepSet steps_;
  std::optional<StepSet> next_steps_;  // taken over when the step changes
  Registry registry_;
  std::uint64_t step_ = 0;
  std::uint32_t order_ = 0;
  std::uint32_t micro_batches_ = 0;               // seen in the current step
  std::set<std::string> settings_;                // names of AddConfig
  std::string refused_;                           // cause, if not empty
  bool ended_ = false;                            // nobody takes anything any more
  std::vector<PendingCapture> pending_captures_;  // whose last step has not passed
  std::set<std::string> requests_;                // numbers that came, to let be what comes again
  bool keeping_ = false;                          // a wish is for the current step
  std::vector<ExponentSpec> exponents_;
};

}  // namespace statcollect

#endif  // STATCOLLECT_AGENT_STAGING_RECORDER_H_
