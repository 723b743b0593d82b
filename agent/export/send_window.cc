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

void SendWindow::Add(EncodedBatch batch) {
  assert(batch.records > 0);
  batch.first_seq = next_seq_;
  next_seq_ += batch.records;
  unacked_bytes_ += batch.bytes.size();
  unacked_.push_back(std::make_shared<EncodedBatch>(std::move(batch)));
}

std::shared_ptr<const EncodedBatch> SendWindow::TakeNext() {
  return HasUnsent() ? unacked_[next_unsent_++] : nullptr;
}

Result<std::uint64_t> SendWindow::Ack(std::uint64_t durable_seq) {
  STATCOLLECT_RETURN_IF_ERROR(CheckGiven(durable_seq));
  Free(durable_seq);
  return CountAcked(durable_seq);
}

Result<SendWindow::Resumed> SendWindow::Resume(std::uint64_t durable_seq) {
  STATCOLLECT_RETURN_IF_ERROR(CheckGiven(durable_seq));
  Resumed resumed{.newly_acked = CountAcked(durable_seq)};
  while (!recent_.empty() && recent_.back()->last_seq() > durable_seq) {
    recent_bytes_ -= recent_.back()->bytes.size();
    unacked_bytes_ += recent_.back()->bytes.size();
    unacked_.push_front(std::move(recent_.back()));
    recent_.pop_back();
  }
  next_unsent_ = 0;
  Free(durable_seq);
  resumed.lost = acked_seq_ - durable_seq;
  acked_seq_ = durable_seq;
  const std::uint64_t held = first_unacked_seq();
  if (held > durable_seq + 1) resumed.gone = held - 1 - durable_seq;
  return resumed;
}

void SendWindow::Renumber(std::vector<EncodedBatch> first) {
  recent_.clear();  // nothing of it follows the watermark
  recent_bytes_ = 0;
  for (auto batch = first.rbegin(); batch != first.rend(); ++batch) {
    unacked_bytes_ += batch->bytes.size();
    unacked_.push_front(std::make_shared<EncodedBatch>(std::move(*batch)));
  }
  next_unsent_ = 0;
  next_seq_ = acked_seq_ + 1;
  for (const Entry& entry : unacked_) {
    entry->first_seq = next_seq_;
    next_seq_ += entry->records;
  }
}

DefinitionCounts SendWindow::DefinedBefore(const DefinitionCounts& otherwise) const {
  return unacked_.empty() ? otherwise : unacked_.front()->before;
}

std::vector<SendWindow::Entry> SendWindow::BehindFile() const {
  std::vector<Entry> behind;
  for (const auto* held : {&recent_, &unacked_}) {
    for (const Entry& entry : *held) {
      if (entry->file.end > 0) {
        behind.clear();
      } else {
        behind.push_back(entry);
      }
    }
  }
  return behind;
}

const EncodedBatch* SendWindow::FirstInFile() const {
  for (const auto* held : {&recent_, &unacked_}) {
    for (const Entry& entry : *held) {
      if (entry->file.end > 0) return entry.get();
    }
  }
  return nullptr;
}

bool SendWindow::UnackedInFile() const {
  return std::any_of(unacked_.begin(), unacked_.end(),
                     [](const Entry& entry) { return entry->file.end > 0; });
}

bool SendWindow::UnackedBeforeFile() const {
  return !unacked_.empty() && unacked_.front()->file.end == 0 && UnackedInFile();
}

void SendWindow::ForgetFile() {
  for (const auto* held : {&recent_, &unacked_}) {
    for (const Entry& entry : *held) entry->file = {};
  }
}

std::uint64_t SendWindow::SentRecords() const {
  std::uint64_t records = 0;
  for (std::size_t i = 0; i < next_unsent_; ++i) records += unacked_[i]->records;
  return records;
}

std::uint64_t SendWindow::UnackedRecords(bool in_file) const {
  std::uint64_t records = 0;
  for (const Entry& entry : unacked_) {
    if ((entry->file.end > 0) == in_file)
      records += entry->last_seq() - std::max(acked_seq_, entry->first_seq - 1);
  }
  return records;
}

std::uint64_t SendWindow::first_unacked_seq() const {
  return unacked_.empty() ? next_seq_ : unacked_.front()->first_seq;
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
                                     ": this agent has sent numbers up to " + std::to_string(next_seq_ - 1) +
                                     " only; another process may be using its session; stopping");
}

void SendWindow::Free(std::uint64_t durable_seq) {
  while (!unacked_.empty() && unacked_.front()->last_seq() <= durable_seq) {
    Entry entry = std::move(unacked_.front());
    unacked_.pop_front();
    unacked_bytes_ -= entry->bytes.size();
    if (next_unsent_ > 0) --next_unsent_;
    recent_bytes_ += entry->bytes.size();
    recent_.push_back(std::move(entry));
  }
  while (recent_.size() > kRecentBatchesMax || recent_bytes_ > kRecentBytesMax) {
    recent_bytes_ -= recent_.front()->bytes.size();
    recent_.pop_front();
  }
}

std::uint64_t SendWindow::CountAcked(std::uint64_t durable_seq) {
  if (durable_seq <= acked_seq_) return 0;
  return durable_seq - std::exchange(acked_seq_, durable_seq);
}

}  // namespace statcollect
