// Tensors that CUDA graphs compute. Adding one to a graph fixes its identity, layout and position
// in the step; each replay of the graph produces a record under that identity.
//
// The batcher learns what replays recorded in a step only after later records have been given
// slots. A gate, a slot without a tensor, keeps their place in the order (staging_ring.h). Threads:
// any; GateLocked needs the mutex of the StagingState, the others take it.
#ifndef STATCOLLECT_AGENT_STAGING_GRAPH_TENSORS_H_
#define STATCOLLECT_AGENT_STAGING_GRAPH_TENSORS_H_

#include <cstdint>
#include <span>
#include <string_view>

#include "agent/staging/staging_state.h"
#include "common/placement.h"
#include "common/status.h"
#include "common/types.h"

namespace statcollect {

// A tensor that is computed whenever a CUDA graph is replayed.
struct GraphTensor {
  std::uint32_t root = 0;  // handle of the identity with call 0
  std::uint32_t call = 0, layout = 0, order = 0;
};

class GraphTensors {
 public:
  // `state` outlives it.
  explicit GraphTensors(StagingState* state) : state_(*state) {}

  // Records nothing now; the tensor may be observed in this step as well. kInvalidArgument as
  // Recorder::Begin, kResourceExhausted: too many identities or shapes.
  Status AddToGraph(std::uint32_t handle, DType dtype, std::span<const std::int64_t> shape,
                    GraphTensor* out, const PlacementView* placement = nullptr);
  // `next_call` counts the call index instead of taking identity.call.
  Status AddToGraph(const IdentityView& identity, bool next_call, DType dtype,
                    std::span<const std::int64_t> shape, GraphTensor* out,
                    const PlacementView* placement = nullptr);

  // Fills in activation, layout, step and order of a replay's record. The step may be over. The
  // call index is `call`, or the next free one of `call + stride`, `call + 2 * stride`, ... False
  // if the record was lost (and counted).
  bool Replay(const GraphTensor& tensor, std::uint32_t call, std::uint32_t stride,
              std::uint64_t step, ObservedTensor* record);
  // n records that Replay has accepted are lost.
  void LoseReplayed(std::string_view cause, std::uint64_t n = 1) { state_.ledger->Drop(cause, n); }
  // n records that Replay was not called for are lost.
  void MissReplayed(std::string_view cause, std::uint64_t n = 1) {
    state_.ledger->ProduceDropped(cause, n);
  }

  // Keeps the place of what replays have recorded so far in the current step. The caller calls
  // OpenGate once all of it has arrived. nullptr if no slot is free or records are refused.
  Slot* Gate();
  // As Gate, for all steps before `next`, which becomes the current step.
  Slot* GateLocked(std::uint64_t next);
  void OpenGate(Slot* gate);

 private:
  Status AddLocked(std::uint32_t handle, DType dtype, std::span<const std::int64_t> shape,
                   GraphTensor* out, const PlacementView* placement)
      STATCOLLECT_REQUIRES(state_.mutex);

  StagingState& state_;
};

}  // namespace statcollect

#endif  // STATCOLLECT_AGENT_STAGING_GRAPH_TENSORS_H_
