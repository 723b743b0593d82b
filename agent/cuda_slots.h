// Slots that a GPU fills: between recorder and CUDA engine.
#ifndef STATCOLLECT_AGENT_CUDA_SLOTS_H_
#define STATCOLLECT_AGENT_CUDA_SLOTS_H_

#include <cstddef>
#include <memory>
#include <span>

#include "agent/staging/recorder.h"
#include "agent/staging/slot_filler.h"
#include "agent/stats/cuda/engine.h"
#include "agent/stats/stats.h"
#include "common/clock.h"

namespace statcollect {

// Threads: Check and Fill from any; Poll from the batcher's; Abandon once the batcher has stopped.
class CudaSlots final : public SlotFiller {
 public:
  // `recorder` and `clock` outlive it.
  CudaSlots(const stats::cuda::EngineOptions& options, std::unique_ptr<stats::cuda::CudaApi> api,
            Recorder* recorder, const Clock* clock);

  // Whether the tensor can be observed. Precondition: Validate(tensor) was OK.
  Status Check(const stats::CpuTensor& tensor, int device) { return engine_.Check(tensor, device); }
  // Enqueues the computation of what goes into the slot; counts a loss and gives the slot up if that is not
  // possible. Precondition: Check(tensor, device) was OK. kUnimplemented: its strides.
  Status Fill(Slot* slot, const stats::CpuTensor& tensor, int device, void* stream);

  // The same for several tensors, with as few launches as possible. *unimplemented: how many were given up
  // for their strides.
  struct Item {
    Slot* slot = nullptr;
    stats::CpuTensor tensor;
  };
  void FillList(std::span<const Item> items, int device, void* stream, std::size_t* unimplemented);

  std::size_t Poll() noexcept override;
  // Nothing more will be polled: every slot still to come is handed over unfilled, for the ring to count.
  void Abandon();

 private:
  // Counts the loss of a slot that is not going to be computed.
  void GiveUp(Slot* slot, const Status& why);

  Recorder* const recorder_;
  const Clock* const clock_;
  stats::cuda::CudaEngine engine_;
};

}  // namespace statcollect

#endif  // STATCOLLECT_AGENT_CUDA_SLOTS_H_
