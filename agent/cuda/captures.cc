#include "agent/cuda/captures.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "common/names.h"
#include "common/shape.h"

namespace statcollect {
namespace {

// The memory that the first `elements` elements are spread over, in elements from the data pointer.
struct Extent {
  std::int64_t low = 0, high = 0;  // inclusive
};

// `rows` of the first dimension, all of the others.
Extent ExtentOf(std::span<const std::int64_t> shape, std::span<const std::int64_t> strides,
                std::int64_t rows) {
  Extent extent;
  for (std::size_t d = 0; d < shape.size(); ++d) {
    const std::int64_t reach = ((d == 0 ? rows : shape[d]) - 1) * strides[d];
    (reach < 0 ? extent.low : extent.high) += reach;
  }
  return extent;
}

std::vector<std::int64_t> StridesOf(const stats::CpuTensor& tensor) {
  if (!tensor.strides.empty()) return {tensor.strides.begin(), tensor.strides.end()};
  std::vector<std::int64_t> strides(tensor.shape.size());
  std::int64_t next = 1;
  for (std::size_t d = strides.size(); d-- > 0; next *= tensor.shape[d]) strides[d] = next;
  return strides;
}

// Whether the elements of a row, in their order, lie side by side.
bool IsContiguousRow(std::span<const std::int64_t> shape, std::span<const std::int64_t> strides) {
  std::int64_t next = 1;
  for (std::size_t d = shape.size(); d-- > 1; next *= shape[d]) {
    if (shape[d] != 1 && strides[d] != next) return false;
  }
  return true;
}

std::string_view CauseOf(const Status& why) {
  switch (why.code()) {
    case Code::kResourceExhausted:
      return kDropCaptureMemory;
    case Code::kOutOfRange:
      return kDropCaptureStrides;
    case Code::kFailedPrecondition:
      return kDropGraphCapture;
    case Code::kAborted:
      return kDropClosed;
    default:
      return kDropDeviceError;
  }
}

}  // namespace

CudaCaptures::~CudaCaptures() {
  Abandon();
  // A copy may still be on its way into it otherwise.
  if (pinned_ != nullptr && flights_.empty()) api_->FreeOnHost(pinned_device_, pinned_);
}

Status CudaCaptures::Copy(CapturedTensor* captured, const stats::CpuTensor& tensor, int device,
                          void* stream) {
  Flight plan{.captured = captured,
              .device = device,
              .dtype = tensor.dtype,
              .shape = {tensor.shape.begin(), tensor.shape.end()},
              .strides = StridesOf(tensor)};
  Status copied;
  std::list<Flight>::iterator flight;
  {
    MutexLock lock(mutex_);
    copied = PlanLocked(plan, tensor, stream);
    if (copied.ok()) flight = flights_.insert(flights_.end(), plan);
  }
  if (!copied.ok()) {
    captured->keeper()->GiveUp(captured, CauseOf(copied));
    return copied;
  }
  // Blocks while the stream's queue is full. Only this thread takes the flight away until it has an
  // event.
  const auto* from = static_cast<const unsigned char*>(tensor.data) - plan.first;
  const auto event =
      api_->CopyToHostInStream(device, pinned_ + plan.begin, from, plan.bytes, stream);
  MutexLock lock(mutex_);
  if (event.ok()) {
    flight->event = *event;
    return Status::Ok();
  }
  flights_.erase(flight);
  if (!abandoned_) captured->keeper()->GiveUp(captured, CauseOf(event.status()));
  return event.status();
}

Status CudaCaptures::PlanLocked(Flight& flight, const stats::CpuTensor& tensor, void* stream) {
  if (abandoned_) return {Code::kAborted, "the agent is closing"};
  if (api_ == nullptr) return {Code::kUnimplemented, "the agent was built without CUDA"};
  if (api_->IsCapturing(flight.device, stream))
    return {Code::kFailedPrecondition, "its stream was being captured into a CUDA graph"};
  const std::uint64_t elements = flight.captured->elements();
  const std::size_t element_bytes = DTypeBytes(tensor.dtype);
  if (elements > 0) {
    const std::uint64_t row =
        flight.shape.empty() ? 1 : NumelOf(std::span(flight.shape).subspan(1));
    const auto rows = static_cast<std::int64_t>((elements + row - 1) / row);
    const Extent extent = ExtentOf(flight.shape, flight.strides, rows);
    flight.bytes = static_cast<std::size_t>(extent.high - extent.low + 1) * element_bytes;
    // For a part of a contiguous row, read only that part.
    if (rows == 1 && IsContiguousRow(flight.shape, flight.strides))
      flight.bytes = elements * element_bytes;
    flight.first = static_cast<std::size_t>(-extent.low) * element_bytes;
    if (flight.bytes > kPinnedBytes) {
      return {Code::kOutOfRange, "its elements are spread over " +
                                     std::to_string(flight.bytes >> 20) +
                                     " MiB of the device's memory; at most " +
                                     std::to_string(kPinnedBytes >> 20) + " are copied"};
    }
  }
  if (pinned_ == nullptr) {
    const auto memory = api_->AllocateOnHost(flight.device, kPinnedBytes);
    if (!memory.ok()) return {Code::kResourceExhausted, memory.status().message()};
    pinned_ = static_cast<unsigned char*>(*memory);
    pinned_device_ = flight.device;
  }
  const auto begin = FindRoomLocked(flight.bytes);
  if (!begin.ok()) return begin.status();
  flight.begin = *begin;
  return Status::Ok();
}

Result<std::size_t> CudaCaptures::FindRoomLocked(std::size_t bytes) const {
  std::vector<std::pair<std::size_t, std::size_t>> used;
  for (const Flight& flight : flights_)
    used.emplace_back(flight.begin, flight.begin + flight.bytes);
  std::sort(used.begin(), used.end());
  constexpr std::size_t kAlignment = 256;
  std::size_t begin = 0;
  for (const auto& [from, to] : used) {
    if (from >= begin + bytes) break;
    begin = std::max(begin, (to + kAlignment - 1) / kAlignment * kAlignment);
  }
  if (begin + bytes <= kPinnedBytes) return begin;
  return Status(Code::kResourceExhausted, "too many values are already in flight from the device");
}

std::size_t CudaCaptures::Poll() noexcept {
  std::list<Flight*> landed;
  std::vector<std::pair<CaptureTarget, std::string>> lost;
  {
    MutexLock lock(mutex_);
    for (auto flight = flights_.begin(); flight != flights_.end();) {
      if (flight->event == nullptr) {
        ++flight;
        continue;
      }
      const auto done = api_->IsDone(flight->device, flight->event);
      if (done.ok()) {
        if (*done) landed.push_back(&*flight);
        ++flight;
      } else {
        lost.emplace_back(flight->captured->target(), done.status().message());
        flight->captured->keeper()->GiveUp(flight->captured, kDropDeviceError);
        flight = flights_.erase(flight);
      }
    }
  }
  // Their place in the pinned memory stays taken; who observes does not wait while they are copied.
  for (Flight* const flight : landed) HandOver(flight);
  for (const auto& [target, why] : lost) on_lost_(target, why);
  MutexLock lock(mutex_);
  flights_.remove_if([&](const Flight& flight) {
    return std::find(landed.begin(), landed.end(), &flight) != landed.end();
  });
  return flights_.size();
}

void CudaCaptures::HandOver(const Flight* flight) {
  const stats::CpuTensor view{pinned_ + flight->begin + flight->first, flight->dtype, flight->shape,
                              flight->strides};
  stats::CopyElements(view, flight->captured->elements(), flight->captured->data());
  flight->captured->keeper()->Commit(flight->captured);
}

void CudaCaptures::Abandon() {
  MutexLock lock(mutex_);
  if (std::exchange(abandoned_, true)) return;
  for (const Flight& flight : flights_)
    flight.captured->keeper()->GiveUp(flight.captured, kDropClosed);
}

}  // namespace statcollect
