#include "agent/cuda_slots.h"

#include <utility>

namespace statcollect {

CudaSlots::CudaSlots(const stats::cuda::EngineOptions& options, std::unique_ptr<stats::cuda::CudaApi> api,
                     Recorder* recorder, const Clock* clock)
    : recorder_(recorder), clock_(clock), engine_(options, std::move(api)) {}

Status CudaSlots::Fill(Slot* slot, const stats::CpuTensor& tensor, int device, void* stream) {
  const stats::cuda::Output output = {&slot->stats, slot->sketch, slot->samples, &slot->sample_count};
  const Status enqueued = engine_.Enqueue(tensor, device, stream, output, slot);
  switch (enqueued.code()) {
    case Code::kOk:
      break;
    case Code::kResourceExhausted:
      recorder_->GiveUp(slot, kDropBufferFull);
      break;
    case Code::kFailedPrecondition:
      recorder_->GiveUp(slot, kDropGraphCapture);
      break;
    case Code::kAborted:
      recorder_->GiveUp(slot, kDropClosed);
      break;
    case Code::kUnimplemented:
      recorder_->GiveUp(slot, kDropDeviceError);
      return enqueued;
    default:
      recorder_->GiveUp(slot, kDropDeviceError);
  }
  return Status::Ok();
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
