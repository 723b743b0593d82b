#include "agent/cuda_slots.h"

#include <utility>
#include <vector>

namespace statcollect {

CudaSlots::CudaSlots(const stats::cuda::EngineOptions& options, std::unique_ptr<stats::cuda::CudaApi> api,
                     Recorder* recorder, const Clock* clock)
    : recorder_(recorder), clock_(clock), engine_(options, std::move(api)) {}

Status CudaSlots::Fill(Slot* slot, const stats::CpuTensor& tensor, int device, void* stream) {
  const stats::cuda::Output output = {&slot->stats, slot->sketch, slot->samples, &slot->sample_count};
  const Status enqueued = engine_.Enqueue(tensor, device, stream, output, slot);
  if (!enqueued.ok()) GiveUp(slot, enqueued);
  return enqueued.code() == Code::kUnimplemented ? enqueued : Status::Ok();
}

void CudaSlots::FillList(std::span<const Item> items, int device, void* stream, std::size_t* unimplemented) {
  std::vector<stats::cuda::CudaEngine::Item> list;
  list.reserve(items.size());
  for (const Item& item : items) {
    list.push_back({item.tensor,
                    {&item.slot->stats, item.slot->sketch, item.slot->samples, &item.slot->sample_count},
                    item.slot});
  }
  *unimplemented = 0;
  engine_.EnqueueList(list, device, stream, [&](void* cookie, const Status& why) {
    if (why.code() == Code::kUnimplemented) ++*unimplemented;
    GiveUp(static_cast<Slot*>(cookie), why);
  });
}

void CudaSlots::GiveUp(Slot* slot, const Status& why) {
  switch (why.code()) {
    case Code::kResourceExhausted:
      return recorder_->GiveUp(slot, kDropBufferFull);
    case Code::kFailedPrecondition:
      return recorder_->GiveUp(slot, kDropGraphCapture);
    case Code::kAborted:
      return recorder_->GiveUp(slot, kDropClosed);
    default:
      return recorder_->GiveUp(slot, kDropDeviceError);
  }
}

std::size_t CudaSlots::Poll() noexcept {
  return engine_.Poll(clock_->Now(), [this](void* cookie, const Status& status) {
    auto* const slot = static_cast<Slot*>(cookie);
    if (status.ok()) {
      recorder_->Commit(slot);
    } else {
      recorder_->GiveUp(slot, kDropDeviceError);
    }
  });
}

void CudaSlots::Abandon() {
  engine_.Abandon(true,
                  [this](void* cookie, const Status&) { recorder_->Commit(static_cast<Slot*>(cookie)); });
}

}  // namespace statcollect
