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

#include "agent/staging/ledger.h"
#include "agent/staging/registry.h"
#include "agent/staging/side_queue.h"
#include "agent/staging/staging_ring.h"
#include "agent/staging/waker.h"
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
  // kInvalidArgument: unknown handle, or observed before in this step.
  Status Begin(std::uint32_t handle, DType dtype, std::span<const std::int64_t> shape, Slot** slot);
  // As above; `next_call` counts the call index instead of taking identity.call.
  Status Begin(const IdentityView& identity, bool next_call, DType dtype, std::span<const std::int64_t> shape,
               Slot** slot);
  void Commit(Slot* slot);
  // Instead of Commit: the tensor could not be computed, for this cause.
  void GiveUp(Slot* slot, std::string_view cause);

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
  void EndStep();
  Status SetStep(std::uint64_t step);
  std::uint64_t step() const;
  bool StepWanted() const;
  // In which steps tensors are recorded from the next step on.
  void RecordSteps(StepSet steps);

  // From now on records are counted as dropped for this cause, and nothing is computed. The first cause
  // stays.
  void Refuse(std::string_view cause);
  // Counts everything that still waits here as dropped. Precondition: refused, and the batcher has stopped.
  void DropRest(std::string_view cause);

  // For the batcher.
  StagingRing& ring() { return ring_; }
  SideQueue& side() { return side_; }
  const Definitions& definitions() const { return definitions_; }

 private:
  Status BeginLocked(std::uint32_t handle, DType dtype, std::span<const std::int64_t> shape, Slot** slot);
  void BeginStepLocked(std::uint64_t step);
  bool WantsLocked(Mode mode) const { return mode == Mode::kInit || steps_.Contains(step_); }
  // Takes the record or counts it as lost; tells whether the batcher must be woken.
  bool PushLocked(SideRecord record);
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
  Definitions definitions_;
  StagingRing ring_;
  SideQueue side_;

  mutable std::mutex mutex_;  // guards the rest, and the order of reservations and pushes
  StepSet steps_;
  std::optional<StepSet> next_steps_;  // taken over when the step changes
  Registry registry_;
  std::uint64_t step_ = 0;
  std::uint32_t order_ = 0;
  std::uint32_t micro_batches_ = 0;  // seen in the current step
  std::set<std::string> settings_;   // names of AddConfig
  std::string refused_;              // cause, if not empty
};

}  // namespace statcollect

#endif  // STATCOLLECT_AGENT_STAGING_RECORDER_H_
