// Slots that a GPU fills, and records of replayed CUDA graphs: between the recorder and the CUDA
// engine.
//
// The host does not see replays until their results arrive through the engine's log. Therefore the
// end of a step puts a gate into the order of records (staging_ring.h) and a mark into the stream
// of replays. Everything in the log before the mark belongs to the step; when the device has passed
// the mark, the gate opens.
//
//   replay's result: landed (here, by step) -> sent at its gate, or lost if the gate was already
//   passed
//
// Invariants: (1) Every gate opens: its marks are reached, the device fails, or rows of the log are
// lost. (2) A record is given to the batcher only at a gate of its step.
#ifndef STATCOLLECT_AGENT_CUDA_SLOTS_H_
#define STATCOLLECT_AGENT_CUDA_SLOTS_H_

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <unordered_map>
#include <vector>

#include "agent/staging/recorder.h"
#include "agent/staging/slot_filler.h"
#include "agent/stats/cuda/engine.h"
#include "agent/stats/stats.h"
#include "common/clock.h"
#include "common/thread_annotations.h"

namespace statcollect {

// Threads: Check, Fill, AddToGraph, IsCapturing, ReplaysIn and Mark from any; Poll, FrontReplayed,
// PopReplayed and PassGate from the batcher's; Abandon once the batcher has stopped.
class CudaSlots final : public SlotFiller, private stats::cuda::ReplayListener {
 public:
  // `recorder` and `clock` outlive it.
  CudaSlots(const stats::cuda::EngineOptions& options, std::unique_ptr<stats::cuda::CudaApi> api,
            Recorder* recorder, const Clock* clock);

  // Whether the tensor can be observed. Precondition: Validate(tensor) was OK.
  Status Check(const stats::CpuTensor& tensor, int device) { return engine_.Check(tensor, device); }
  // Enqueues the computation for the slot. If that fails, counts the loss and gives the slot up.
  // Precondition: Check(tensor, device) was OK and IsCapturing(device, stream) is false.
  // kUnimplemented: the tensor's strides. `place` (null: the tensor is the whole): accepted by the
  // recorder; not needed afterwards.
  Status Fill(Slot* slot, const stats::CpuTensor& tensor, int device, void* stream,
              const PlacementView* place = nullptr);

  // As Fill for several tensors, with as few launches as possible. *unimplemented: how many were
  // given up because of their strides.
  struct Item {
    Slot* slot = nullptr;
    stats::CpuTensor tensor;
    std::optional<PlacementView> place = {};  // absent: the tensor is the whole
  };
  void FillList(std::span<const Item> items, int device, void* stream, std::size_t* unimplemented);

  // Whether the stream is being captured into a graph. Precondition: Check was OK for a tensor of
  // the device.
  bool IsCapturing(int device, void* stream) { return engine_.IsCapturing(device, stream); }
  // Records the tensor at each replay from now on; a failure counts as one loss. `step`: the
  // current one; `wanted`: whether it is recorded. kUnimplemented: the tensor's strides.
  Status AddToGraph(const GraphTensor& graph_tensor, const stats::CpuTensor& tensor, int device,
                    void* stream, std::uint64_t step, bool wanted,
                    const PlacementView* place = nullptr);
  // The devices whose replays currently record something.
  std::vector<int> ReplayDevices() { return engine_.ReplayDevices(); }
  // Puts marks into this stream from now on; by default they go into the device's default stream.
  void ReplaysIn(int device, void* stream);
  // What these devices replay from now on belongs to `step` and is recorded if `wanted`. `gate`
  // opens when the devices have passed the mark; if it is null, results of earlier steps that are
  // not sent yet are lost. Returns the mark's number.
  std::uint64_t Mark(Slot* gate, std::span<const int> devices, std::uint64_t step, bool wanted);
  // Waits until the devices have passed the mark; false if the deadline comes first.
  bool WaitMarked(std::uint64_t mark, std::chrono::steady_clock::time_point deadline);

  std::size_t Poll() noexcept override;
  const ObservedTensor* FrontReplayed(const ReplayGate& gate) noexcept override;
  void PopReplayed() noexcept override;
  void PassGate(const ReplayGate& gate) noexcept override;
  // Hands over every outstanding slot unfilled, for the ring to count. Poll is not called
  // afterwards, and graphs that are still alive record nothing.
  void Abandon();

 private:
  // A tensor in a graph.
  struct InGraph {
    GraphTensor tensor;
    std::uint64_t graph = 0;
    std::uint64_t step = 0;     // of the last replay
    std::uint32_t replays = 0;  // in that step
  };
  // What the tensors of one graph have in common.
  struct Graph {
    std::uint32_t tensors = 0;  // alive
    std::uint32_t orders = 0;   // positions that a replay takes
    struct Calls {
      std::uint32_t first = ~0u, count = 0;
    };
    std::map<std::uint32_t, Calls> calls;  // by root
  };
  struct Replay : ObservedTensor {
    std::vector<double> values;
  };
  struct OpenMark {
    std::uint64_t number = 0;
    Slot* gate = nullptr;
    std::set<int> devices;  // that have not passed it
  };

  void DropLate();  // drops what has landed and has no gate
  // Counts the loss of a slot that is not going to be computed.
  void GiveUp(Slot* slot, const Status& why);
  // `device` has passed all marks up to this one.
  void Reach(int device, std::uint64_t number);

  void Replayed(void* cookie, std::uint64_t step, const TensorStats& stats,
                std::span<const double> sketch, std::span<const double> samples) override;
  void Marked(int device, std::uint64_t number) override { Reach(device, number); }
  void Missed(int device, std::uint64_t rows) override;
  void Failed(int device) override;
  void Gone(void* cookie) override;

  Recorder* const recorder_;
  const Clock* const clock_;
  stats::cuda::CudaEngine engine_;

  // Used only by the batcher's thread.
  std::map<std::uint64_t, std::deque<Replay>> landed_;  // by step
  std::size_t landed_count_ = 0;
  std::uint64_t floor_ = 0;  // replays of lower steps are too late
  std::atomic<std::uint64_t> gateless_{
      0};  // lower steps ended without a gate; changed under mutex_

  Mutex mutex_;  // guards what follows
  ConditionVariable marks_changed_;
  std::unordered_map<void*, std::unique_ptr<InGraph>> in_graphs_ STATCOLLECT_GUARDED_BY(mutex_);
  std::map<std::uint64_t, Graph> graphs_ STATCOLLECT_GUARDED_BY(mutex_);
  std::map<int, void*> streams_ STATCOLLECT_GUARDED_BY(mutex_);
  std::uint64_t marks_ STATCOLLECT_GUARDED_BY(mutex_) = 0;
  std::deque<OpenMark> open_ STATCOLLECT_GUARDED_BY(mutex_);
};

}  // namespace statcollect

#endif  // STATCOLLECT_AGENT_CUDA_SLOTS_H_
