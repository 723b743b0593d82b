#include "agent/staging/graph_tensors.h"

#include <string>

namespace statcollect {

Status GraphTensors::AddToGraph(std::uint32_t handle, DType dtype,
                                std::span<const std::int64_t> shape, GraphTensor* out,
                                const PlacementView* placement) {
  MutexLock lock(state_.mutex);
  return AddLocked(handle, dtype, shape, out, placement);
}

Status GraphTensors::AddToGraph(const IdentityView& identity, bool next_call, DType dtype,
                                std::span<const std::int64_t> shape, GraphTensor* out,
                                const PlacementView* placement) {
  MutexLock lock(state_.mutex);
  const auto handle = next_call ? state_.registry.InternNextCall(identity, state_.step)
                                : state_.registry.Intern(identity);
  return handle.ok() ? AddLocked(*handle, dtype, shape, out, placement) : handle.status();
}

Status GraphTensors::AddLocked(std::uint32_t handle, DType dtype,
                               std::span<const std::int64_t> shape, GraphTensor* out,
                               const PlacementView* placement) {
  Registry::Activation* activation = state_.registry.Find(handle);
  if (activation == nullptr) return Registry::UnknownHandle(handle);
  std::uint32_t layout =
      state_.registry.FindLayout(dtype, shape, placement, activation->last_layout);
  if (layout == Registry::kNone)
    STATCOLLECT_RETURN_IF_ERROR(Registry::CheckNewLayout(*activation, shape, placement));
  const auto root = state_.registry.InternCall(*activation, 0);
  if (!root.ok()) return root.status();
  if (layout == Registry::kNone) layout = state_.registry.AddLayout(dtype, shape, placement);
  if (layout == Registry::kNone)
    return {Code::kResourceExhausted, "observe: too many different shapes"};
  state_.NoteMicroBatchLocked(activation->def.key.micro_batch);
  *out = {*root, activation->def.key.call, layout, state_.order++};
  return Status::Ok();
}

bool GraphTensors::Replay(const GraphTensor& tensor, std::uint32_t call, std::uint32_t stride,
                          std::uint64_t step, ObservedTensor* record) {
  constexpr int kTries = 64;
  MutexLock lock(state_.mutex);
  std::string_view cause = kDropTableFull;
  for (int i = 0; i < kTries && state_.refused.empty(); ++i, call += stride) {
    const auto handle = state_.registry.InternCall(*state_.registry.Find(tensor.root), call);
    if (!handle.ok()) break;
    Registry::Activation* activation = state_.registry.Find(*handle);
    if (activation->next_step > step) {
      cause = kDropGraphReplay;
      continue;
    }
    activation->next_step = step + 1;
    record->activation = state_.registry.Define(activation);
    record->layout = tensor.layout;
    record->step = step;
    record->order = tensor.order;
    state_.ledger->Produce();
    return true;
  }
  state_.ledger->ProduceDropped(state_.refused.empty() ? cause : std::string_view(state_.refused));
  return false;
}

Slot* GraphTensors::Gate() {
  MutexLock lock(state_.mutex);
  return GateLocked(state_.step);
}

Slot* GraphTensors::GateLocked(std::uint64_t next) {
  state_.mutex.AssertHeld();
  Slot* const slot = state_.TryReserveLocked();
  if (slot != nullptr)
    slot->gate = ReplayGate{.step = next > state_.step ? next - 1 : state_.step, .next = next};
  return slot;
}

void GraphTensors::OpenGate(Slot* gate) {
  (void)state_.ring.Commit(gate);
  state_.batcher->Wake();
}

}  // namespace statcollect
