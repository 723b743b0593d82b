// Captures raw values of tensors in CUDA memory: copies them, in the tensor's stream, to pinned
// memory, and from there, once they have arrived, to whoever keeps them: the queue or the ring.
// Nothing here waits for a device; the tensor may be freed in stream order right after Copy.
//
// The pinned memory (kPinnedBytes) is allocated by the first Copy, in the caller's thread, and kept
// until the end. The allocation takes milliseconds and may delay work of other streams, once.
#ifndef STATCOLLECT_AGENT_CUDA_CAPTURES_H_
#define STATCOLLECT_AGENT_CUDA_CAPTURES_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <vector>

#include "agent/cuda/token_rows.h"
#include "agent/staging/capture_queue.h"
#include "agent/staging/slot_filler.h"
#include "agent/stats/cuda/cuda_api.h"
#include "agent/stats/stats.h"
#include "common/status.h"
#include "common/thread_annotations.h"

namespace statcollect {

// Threads: Copy from any; Poll from the batcher's; Abandon once the batcher has stopped.
class CudaCaptures final {
 public:
  static constexpr std::size_t kPinnedBytes = std::size_t{64} << 20;

  // Called when a tensor is given up after Copy returned OK. From the batcher's thread.
  using OnLost = std::function<void(const CaptureTarget& target, const std::string& why)>;

  // `api` may be null: then every copy is refused. Keepers outlive it.
  CudaCaptures(std::unique_ptr<stats::cuda::CudaApi> api, OnLost on_lost)
      : api_(std::move(api)), on_lost_(std::move(on_lost)) {}
  // Memory that a device may still write to is leaked, not freed.
  ~CudaCaptures();
  CudaCaptures(const CudaCaptures&) = delete;
  CudaCaptures& operator=(const CudaCaptures&) = delete;

  // Starts to copy the first elements into the reserved tensor, or gives it up and says why.
  // Precondition: stats::Validate(tensor) is OK and its memory is the device's (CudaEngine::Check).
  Status Copy(CapturedTensor* captured, const stats::CpuTensor& tensor, int device, void* stream);

  // Hands over what has arrived; returns how many copies are still on their way. Never waits.
  std::size_t Poll() noexcept;
  // Gives up all copies that are still on their way. Poll is not called afterwards.
  void Abandon();

 private:
  // A copy on its way.
  struct Flight {
    CapturedTensor* captured = nullptr;
    int device = 0;
    void* event = nullptr;             // null: being enqueued, without the mutex
    std::size_t begin = 0, bytes = 0;  // in pinned_
    std::size_t first = 0;             // byte of these where the tensor's first element lies
    DType dtype = DType::kUnspecified;
    std::vector<std::int64_t> shape, strides;
  };

  // Everything but the copy itself.
  Status PlanLocked(Flight& flight, const stats::CpuTensor& tensor, void* stream)
      STATCOLLECT_REQUIRES(mutex_);
  void HandOver(const Flight* flight);  // of Poll, without the mutex
  // Where `bytes` bytes of pinned memory are free; kResourceExhausted.
  Result<std::size_t> FindRoomLocked(std::size_t bytes) const STATCOLLECT_REQUIRES(mutex_);

  const std::unique_ptr<stats::cuda::CudaApi> api_;
  const OnLost on_lost_;
  Mutex mutex_;                      // guards the rest; only Poll and Abandon take flights away
  unsigned char* pinned_ = nullptr;  // constant from the first flight until Abandon
  int pinned_device_ STATCOLLECT_GUARDED_BY(mutex_) =
      0;  // that it was allocated with; every device can write it
  std::list<Flight> flights_ STATCOLLECT_GUARDED_BY(mutex_);
  bool abandoned_ STATCOLLECT_GUARDED_BY(mutex_) = false;
};

// Slots, captures and rows of CUDA devices, as the batcher asks for them.
class CudaFiller final : public SlotFiller {
 public:
  CudaFiller(SlotFiller* slots, CudaCaptures* captures, CudaTokenRows* rows)
      : slots_(slots), captures_(captures), rows_(rows) {}
  std::size_t Poll() noexcept override {
    return slots_->Poll() + captures_->Poll() + rows_->Poll();
  }
  const ObservedTensor* FrontReplayed(const ReplayGate& gate) noexcept override {
    return slots_->FrontReplayed(gate);
  }
  void PopReplayed() noexcept override { slots_->PopReplayed(); }
  void PassGate(const ReplayGate& gate) noexcept override { slots_->PassGate(gate); }

 private:
  SlotFiller* const slots_;
  CudaCaptures* const captures_;
  CudaTokenRows* const rows_;
};

}  // namespace statcollect

#endif  // STATCOLLECT_AGENT_CUDA_CAPTURES_H_
