// The training threads' side of the agent: knows the current step and gives each observed tensor
// its identity, its position in the step and a slot. The engine that computes the statistics fills
// the slot between Begin and Commit, immediately or later (slot_filler.h). All other records go
// through log(), pending_captures() and graphs().
//
// Invariants: (1) An identity is recorded at most once in a step. (2) Steps never decrease; no
// tensor of a step is reserved after the step's end. (3) Everything handed over is in the ledger,
// whether it was kept or lost. Threads: any, except for the batcher's functions, which are marked.
// One mutex (staging_state.h) orders everything.
#ifndef STATCOLLECT_AGENT_STAGING_RECORDER_H_
#define STATCOLLECT_AGENT_STAGING_RECORDER_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "agent/staging/capture_queue.h"
#include "agent/staging/exponent_spec.h"
#include "agent/staging/graph_tensors.h"
#include "agent/staging/pending_captures.h"
#include "agent/staging/side_recorder.h"
#include "agent/staging/staging_state.h"
#include "agent/staging/tensor_ring.h"
#include "common/capture_spec.h"
#include "common/placement.h"
#include "common/step_set.h"

namespace statcollect {

// Most records in a batch; the batcher is woken when this many wait.
inline constexpr std::size_t kBatchRecords = 2048;
// Of SetStep, so that the step after it is always another one.
inline constexpr std::uint64_t kStepMax = (std::uint64_t{1} << 63) - 1;

class Recorder {
 public:
  struct Options {
    StepSet steps;  // in which tensors are recorded; tensors of Mode::kInit always are
    std::size_t slots = 32768;
    std::uint32_t sketch = 16;
    std::uint32_t samples = 0;
    std::vector<CaptureSpec> captures = {};    // whose raw values are kept
    std::vector<ExponentSpec> exponents = {};  // which recorded tensors' exponents are counted
    TensorRing* ring = nullptr;                // keeps values of recorded tensors; may be null
  };

  Recorder(const Options& options, const Clock* clock, Ledger* ledger, Waker* batcher);

  Result<std::uint32_t> Intern(const IdentityView& identity);
  // Reserves a slot for a tensor of this dtype and shape under the identity, in the current step.
  // *slot is nullptr, with status OK, if the step is not recorded or the record was lost (and
  // counted). kInvalidArgument: unknown handle, or already observed in this step. `capture`, if not
  // null, is set if the tensor's raw values are wanted, by captures() or by the ring: the caller
  // hands them over, or calls pending_captures().Miss.
  // The slot's `exponents` are allocated if they are to be counted.
  // `placement`: null if nothing is known. A placement that does not fit the shape is
  // kInvalidArgument.
  Status Begin(std::uint32_t handle, DType dtype, std::span<const std::int64_t> shape, Slot** slot,
               std::optional<CaptureTarget>* capture = nullptr,
               const PlacementView* placement = nullptr);
  // As above; `next_call` counts the call index instead of taking identity.call.
  Status Begin(const IdentityView& identity, bool next_call, DType dtype,
               std::span<const std::int64_t> shape, Slot** slot,
               std::optional<CaptureTarget>* capture = nullptr,
               const PlacementView* placement = nullptr);
  // Hands over the slot; counted exponents become a record of their own.
  void Commit(Slot* slot);
  // Instead of Commit: the tensor could not be computed, for this cause.
  void GiveUp(Slot* slot, std::string_view cause);

  // *gate, if not null, becomes a gate behind the step's last record, as from GraphTensors::Gate.
  void EndStep(Slot** gate = nullptr);
  // kInvalidArgument: an earlier step, or one above kStepMax.
  Status SetStep(std::uint64_t step, Slot** gate = nullptr);
  std::uint64_t step() const;
  bool StepWanted() const;
  // Whether the step is recorded because the collector asked for it: steps, or raw values.
  bool StepAsked() const;
  // Sets the steps in which tensors are recorded; takes effect with the next step.
  void RecordSteps(StepSet steps);

  // From now on records are counted as dropped under this cause, and nothing is computed. The first
  // call wins.
  void Refuse(std::string_view cause);
  // Counts everything that still waits here as dropped. Precondition: refused, and the batcher has
  // stopped.
  void DropRest(std::string_view cause);

  SideRecorder& log() { return log_; }
  PendingCaptures& pending_captures() { return pending_captures_; }
  GraphTensors& graphs() { return graphs_; }
  CaptureQueue& captures() { return captures_; }
  TensorRing* tensor_ring() { return ring_; }
  void WakeBatcher() { state_.batcher->Wake(); }

  std::uint32_t sketch() const { return sketch_; }  // values in each record's sketch
  std::uint32_t samples() const { return samples_; }

  // For the batcher.
  StagingRing& ring() { return state_.ring; }
  SideQueue& side() { return state_.side; }
  const Definitions& definitions() const { return state_.definitions; }

 private:
  Status BeginLocked(std::uint32_t handle, DType dtype, std::span<const std::int64_t> shape,
                     Slot** slot, std::optional<CaptureTarget>* capture,
                     const PlacementView* placement) STATCOLLECT_REQUIRES(state_.mutex);
  void BeginStepLocked(std::uint64_t step) STATCOLLECT_REQUIRES(state_.mutex);
  bool WantsLocked(Mode mode) const STATCOLLECT_REQUIRES(state_.mutex) {
    return mode == Mode::kInit || steps_.Contains(state_.step);
  }
  // Who wants the values of a tensor in this step, if anybody does. The ring takes recorded ones.
  std::optional<CaptureTarget> TargetLocked(const TensorKey& key, bool recorded)
      STATCOLLECT_REQUIRES(state_.mutex);
  // Room for the exponents of a reserved tensor, if they are wanted in this step.
  void WantExponentsLocked(const TensorKey& key, Slot* slot) STATCOLLECT_REQUIRES(state_.mutex);

  const std::uint32_t sketch_, samples_;
  const std::vector<ExponentSpec> exponents_;
  TensorRing* const ring_;
  CaptureQueue captures_;
  StagingState state_;
  PendingCaptures pending_captures_;
  GraphTensors graphs_;
  SideRecorder log_;

  // Guarded by the state's mutex.
  StepSet steps_;
  std::optional<StepSet> next_steps_;  // replaces steps_ when the step changes
  bool asked_ = false;                 // steps_ has come through RecordSteps
};

}  // namespace statcollect

#endif  // STATCOLLECT_AGENT_STAGING_RECORDER_H_
