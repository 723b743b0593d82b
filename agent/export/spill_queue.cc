#include "agent/export/spill_queue.h"

#include <cassert>
#include <utility>

namespace statcollect {

std::uint64_t SpillQueue::Clear() {
  const Batch held = std::exchange(held_, nullptr);
  return std::exchange(records_, 0) + (held == nullptr ? 0 : held->records);
}

void SpillQueue::Hold(EncodedBatch batch) {
  assert(held_ == nullptr);
  held_ = std::make_shared<const EncodedBatch>(std::move(batch));
}

EncodedBatch SpillQueue::TakeHeld() {
  assert(held_ != nullptr && records_ == 0);
  return *std::exchange(held_, nullptr);
}

void SpillQueue::MoveToFile(const Batch& batch, const FileSpan& at) {
  if (held_ != batch) return;
  if (records_ == 0) read_at_ = at.begin;
  end_ = at.end;
  records_ += batch->records;
  held_ = nullptr;
}

void SpillQueue::Pop(const EncodedBatch& batch) {
  read_at_ = batch.file.end;
  records_ -= batch.records;
}

std::uint64_t SpillQueue::Skip(const spill::FrameHead& frame) {
  const bool one = frame.records > 0;  // those behind it can be found
  const std::uint64_t lost = one ? frame.records : records_;
  read_at_ = one ? read_at_ + spill::kFrameHeadBytes + frame.payload_bytes : end_;
  records_ -= lost;
  return lost;
}

}  // namespace statcollect
