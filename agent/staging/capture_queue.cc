#include "agent/staging/capture_queue.h"

#include <algorithm>
#include <cassert>
#include <new>
#include <utility>

namespace statcollect {

std::uint64_t CaptureQueue::ChunksOf(std::uint64_t bytes) {
  return std::max<std::uint64_t>(1, (bytes + kChunkBytes - 1) / kChunkBytes);
}

CapturedTensor* CaptureQueue::Reserve(CaptureTarget target, std::uint64_t elements,
                                      std::uint64_t bytes) {
  {
    MutexLock lock(mutex_);
    if (dropped_ || bytes_ + bytes > kBytesMax) {
      ledger_->ProduceDropped(dropped_ ? kDropClosed : kDropCaptureMemory, ChunksOf(bytes));
      return nullptr;
    }
    bytes_ += bytes;
  }
  std::unique_ptr<unsigned char[]> data(
      new (std::nothrow) unsigned char[std::max<std::uint64_t>(bytes, 1)]);
  MutexLock lock(mutex_);
  if (data == nullptr) {
    bytes_ -= bytes;
    ledger_->ProduceDropped(kDropCaptureMemory, ChunksOf(bytes));
    return nullptr;
  }
  auto tensor =
      std::make_unique<CapturedTensor>(this, std::move(target), elements, bytes, data.get());
  tensor->own_ = std::move(data);
  ledger_->Produce(ChunksOf(bytes));
  tensors_.push_back(std::move(tensor));
  return tensors_.back().get();
}

void CaptureQueue::Commit(CapturedTensor* tensor) {
  MutexLock lock(mutex_);
  if (!dropped_) {
    tensor->ready_ = true;
    return;
  }
  ledger_->Drop(kDropClosed, ChunksOf(tensor->bytes_));
  EraseLocked(tensor);
}

void CaptureQueue::GiveUp(CapturedTensor* tensor, std::string_view cause) {
  MutexLock lock(mutex_);
  ledger_->Drop(cause, ChunksOf(tensor->bytes_));
  EraseLocked(tensor);
}

bool CaptureQueue::empty() const {
  MutexLock lock(mutex_);
  return tensors_.empty();
}

bool CaptureQueue::HasReady() const {
  MutexLock lock(mutex_);
  return FirstReadyLocked() != tensors_.end();
}

std::optional<std::uint64_t> CaptureQueue::OldestStep() const {
  MutexLock lock(mutex_);
  std::optional<std::uint64_t> oldest;
  for (const auto& tensor : tensors_)
    oldest = std::min(oldest.value_or(tensor->target_.step), tensor->target_.step);
  return oldest;
}

CaptureQueue::Next CaptureQueue::Peek() const {
  MutexLock lock(mutex_);
  const auto first = FirstReadyLocked();
  assert(first != tensors_.end());
  const CapturedTensor& tensor = **first;
  const std::uint64_t left = tensor.bytes_ - tensor.sent_;
  return {.target = tensor.target_,
          .elements = tensor.elements_,
          .bytes = std::min<std::size_t>(left, kChunkBytes),
          .last = left <= kChunkBytes};
}

CaptureChunk CaptureQueue::Pop() {
  MutexLock lock(mutex_);
  const auto first = FirstReadyLocked();
  assert(first != tensors_.end());
  CapturedTensor& tensor = **first;
  const std::size_t bytes = std::min<std::size_t>(tensor.bytes_ - tensor.sent_, kChunkBytes);
  CaptureChunk chunk{.step = tensor.target_.step,
                     .activation = tensor.target_.activation,
                     .layout = tensor.target_.layout,
                     .elements = tensor.elements_,
                     .offset = static_cast<std::uint32_t>(tensor.sent_),
                     .data = {reinterpret_cast<const char*>(tensor.data_) + tensor.sent_, bytes}};
  tensor.sent_ += bytes;
  tensor.begun_ = true;
  if (tensor.sent_ == tensor.bytes_) EraseLocked(&tensor);
  return chunk;
}

std::uint64_t CaptureQueue::DropAll() {
  MutexLock lock(mutex_);
  dropped_ = true;
  std::uint64_t chunks = 0;
  std::erase_if(tensors_, [&](const auto& tensor) STATCOLLECT_REQUIRES(mutex_) {
    if (!tensor->ready_) return false;
    chunks += ChunksOf(tensor->bytes_) - tensor->sent_ / kChunkBytes;
    bytes_ -= tensor->bytes_;
    return true;
  });
  return chunks;
}

// The one that has begun, else the oldest that is ready.
CaptureQueue::Tensors::const_iterator CaptureQueue::FirstReadyLocked() const {
  const auto begun =
      std::find_if(tensors_.begin(), tensors_.end(), [](const auto& t) { return t->begun_; });
  if (begun != tensors_.end()) return begun;
  return std::find_if(tensors_.begin(), tensors_.end(), [](const auto& t) { return t->ready_; });
}

void CaptureQueue::EraseLocked(const CapturedTensor* tensor) {
  bytes_ -= tensor->bytes_;
  tensors_.remove_if([tensor](const auto& held) { return held.get() == tensor; });
}

}  // namespace statcollect
