#include "agent/export/send_window.h"

#include <algorithm>
#include <cassert>
#include <string>
#include <utility>

namespace statcollect {
namespace {

// A batch leaves room for several in the window, and the message for its frame.
constexpr std::size_t kBatchBytesMax = 1u << 20;
constexpr std::size_t kFrameBytes = 256;

}  // namespace

std::size_t SendWindow::BatchBytesMax() const {
  const std::size_t message =
      limits_.message_bytes_max > 2 * kFrameBytes ? limits_.message_bytes_max - kFrameBytes : kFrameBytes;
  return std::min({kBatchBytesMax, message, std::max(limits_.window_bytes_max, kFrameBytes)});
}

bool SendWindow::HasRoom() const {
  if (unacked_.empty()) return true;
  return unacked_.size() < limits_.window_batches_max &&
         unacked_bytes_ + BatchBytesMax() <= limits_.window_bytes_max;
}

void SendWindow::Add(RecordBatch batch, std::size_t bytes) {
  assert(batch.records() > 0);
  batch.first_seq = next_seq_;
  next_seq_ += batch.records();
  unacked_.push_back({std::make_shared<const RecordBatch>(std::move(batch)), bytes});
  unacked_bytes_ += bytes;
}

std::shared_ptr<const RecordBatch> SendWindow::TakeNext() {
  return HasUnsent() ? unacked_[next_unsent_++].batch : nullptr;
}

Result<std::uint64_t> SendWindow::Ack(std::uint64_t durable_seq) {
  STATCOLLECT_RETURN_IF_ERROR(CheckGiven(durable_seq));
  Free(durable_seq);
  return CountAcked(durable_seq);
}

Result<SendWindow::Resumed> SendWindow::Resume(std::uint64_t durable_seq) {
  STATCOLLECT_RETURN_IF_ERROR(CheckGiven(durable_seq));
  const Resumed resumed{.newly_acked = CountAcked(durable_seq),
                        .lost = acked_seq_ > durable_seq ? acked_seq_ - durable_seq : 0};
  while (!recent_.empty() && recent_.back().batch->last_seq() > durable_seq) {
    recent_bytes_ -= recent_.back().bytes;
    unacked_bytes_ += recent_.back().bytes;
    unacked_.push_front(std::move(recent_.back()));
    recent_.pop_back();
  }
  next_unsent_ = 0;
  Free(durable_seq);
  const std::uint64_t held = first_unacked_seq();
  if (held <= durable_seq + 1) return resumed;
  return Status(Code::kDataLoss, "resume the stream: the collector has records up to " +
                                     std::to_string(durable_seq) + " although it acknowledged them up to " +
                                     std::to_string(acked_seq_) + ", and this agent keeps them from " +
                                     std::to_string(held) +
                                     "; the records between are lost; check the collector's data directory");
}

std::uint64_t SendWindow::first_unacked_seq() const {
  return unacked_.empty() ? next_seq_ : unacked_.front().batch->first_seq;
}

std::uint64_t SendWindow::Clear() {
  const std::uint64_t lost = next_seq_ - 1 - acked_seq_;
  acked_seq_ = next_seq_ - 1;
  unacked_.clear();
  recent_.clear();
  next_unsent_ = unacked_bytes_ = recent_bytes_ = 0;
  return lost;
}

Status SendWindow::CheckGiven(std::uint64_t durable_seq) const {
  if (durable_seq < next_seq_) return Status::Ok();
  return Status(Code::kDataLoss, "acknowledgement of record " + std::to_string(durable_seq) +
                                     ": this agent has given numbers up to " + std::to_string(next_seq_ - 1) +
                                     " only; another process may be using its session; stopping");
}

void SendWindow::Free(std::uint64_t durable_seq) {
  while (!unacked_.empty() && unacked_.front().batch->last_seq() <= durable_seq) {
    Entry entry = std::move(unacked_.front());
    unacked_.pop_front();
    unacked_bytes_ -= entry.bytes;
    if (next_unsent_ > 0) --next_unsent_;
    recent_bytes_ += entry.bytes;
    recent_.push_back(std::move(entry));
  }
  while (recent_.size() > kRecentBatchesMax || recent_bytes_ > kRecentBytesMax) {
    recent_bytes_ -= recent_.front().bytes;
    recent_.pop_front();
  }
}

std::uint64_t SendWindow::CountAcked(std::uint64_t durable_seq) {
  if (durable_seq <= acked_seq_) return 0;
  return durable_seq - std::exchange(acked_seq_, durable_seq);
}

}  // namespace statcollect
