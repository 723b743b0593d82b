#include "agent/export/send_window.h"

#include <algorithm>
#include <cassert>
#include <limits>
#include <string>
#include <utility>

namespace statcollect {
namespace {

// A batch leaves room for several in the window, and the message for its frame.
constexpr std::size_t kBatchBytesMax = 1u << 20;
constexpr std::size_t kFrameBytes = 256;

}  // namespace

std::size_t SendWindow::BatchBytesMax() const {
  const std::size_t message = limits_.message_bytes_max > 2 * kFrameBytes
                                  ? limits_.message_bytes_max - kFrameBytes
                                  : kFrameBytes;
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

Result<SendWindow::Resumed> SendWindow::Resume(std::uint64_t durable_seq,
                                               const StoreIdentity& store) {
  STATCOLLECT_RETURN_IF_ERROR(CheckGiven(durable_seq));
  Resumed resumed;
  if (durable_seq < acked_seq_) resumed.lost = Counted(durable_seq, acked_seq_);
  TakeBack(durable_seq, store, &resumed);
  resumed.newly_acked = CountAcked(durable_seq);
  next_unsent_ = 0;
  Free(durable_seq);
  const std::uint64_t before_held = first_unacked_seq() - 1;
  if (before_held > durable_seq) {
    resumed.gone = Counted(durable_seq, std::min(before_held, acked_seq_));
    const bool told = store.known() && !unacked_.empty() && unacked_.front()->repairs == store;
    if (!told || resumed.gone > 0) resumed.missing = before_held - durable_seq;
    OpenGap(durable_seq);
  }
  acked_seq_ = durable_seq;
  MarkSkipped();
  return resumed;
}

void SendWindow::TakeBack(std::uint64_t durable_seq, const StoreIdentity& store, Resumed* resumed) {
  while (!recent_.empty() && recent_.back()->last_seq() > durable_seq) {
    recent_bytes_ -= recent_.back()->bytes.size();
    unacked_bytes_ += recent_.back()->bytes.size();
    unacked_.push_front(std::move(recent_.back()));
    recent_.pop_back();
  }
  // Whatever such a batch follows had left the ring when it was made, so they are at the front.
  while (!unacked_.empty() && unacked_.front()->repairs.known() &&
         unacked_.front()->repairs != store) {
    const EncodedBatch& batch = *unacked_.front();
    if (batch.first_seq > acked_seq_) {
      resumed->void_now += batch.records;
      gaps_.push_back({batch.first_seq, batch.last_seq()});
    }
    unacked_bytes_ -= batch.bytes.size();
    unacked_.pop_front();
  }
}

std::uint64_t SendWindow::RoomBefore() const {
  if (unacked_.empty()) return std::numeric_limits<std::uint64_t>::max();
  return unacked_.front()->first_seq - 1 - acked_seq_;
}

std::uint64_t SendWindow::DropFirst() {
  const Entry first = std::move(unacked_.front());
  unacked_.pop_front();
  unacked_bytes_ -= first->bytes.size();
  OpenGap(acked_seq_);
  MarkSkipped();
  return first->records;
}

void SendWindow::Bridge(std::vector<EncodedBatch> first, const StoreIdentity& store) {
  assert(first.size() <= RoomBefore());
  std::uint64_t seq = first_unacked_seq();
  if (unacked_.empty()) {
    next_seq_ += first.size();
  } else {
    seq -= first.size();
    gaps_.back().last = seq - 1;
    if (gaps_.back().last < gaps_.back().first) gaps_.pop_back();
  }
  for (EncodedBatch& batch : first) {
    assert(batch.records == 1);
    batch.first_seq = seq++;
    batch.repairs = store;
  }
  PushFront(std::move(first));
  MarkSkipped();
}

void SendWindow::Renumber(std::vector<EncodedBatch> first) {
  if (!gaps_.empty() && gaps_.back().last > acked_seq_) gaps_.pop_back();
  PushFront(std::move(first));
  next_seq_ = acked_seq_ + 1;
  for (const Entry& entry : unacked_) {
    entry->first_seq = next_seq_;
    next_seq_ += entry->records;
  }
  MarkSkipped();
}

void SendWindow::PushFront(std::vector<EncodedBatch> first) {
  recent_.clear();  // nothing of it follows the watermark
  recent_bytes_ = 0;
  for (auto batch = first.rbegin(); batch != first.rend(); ++batch) {
    unacked_bytes_ += batch->bytes.size();
    unacked_.push_front(std::make_shared<EncodedBatch>(std::move(*batch)));
  }
  next_unsent_ = 0;
}

void SendWindow::MarkSkipped() {
  for (const Entry& entry : unacked_) entry->skipped = 0;
  if (!unacked_.empty() && unacked_.front()->first_seq > acked_seq_ + 1)
    unacked_.front()->skipped = unacked_.front()->first_seq - 1 - acked_seq_;
}

void SendWindow::OpenGap(std::uint64_t after) {
  while (!gaps_.empty() && gaps_.back().last > after) {
    after = std::min(after, gaps_.back().first - 1);
    gaps_.pop_back();
  }
  gaps_.push_back({after + 1, first_unacked_seq() - 1});
}

std::uint64_t SendWindow::Counted(std::uint64_t after, std::uint64_t last) const {
  std::uint64_t count = last > after ? last - after : 0;
  for (const Range& gap : gaps_) {
    const std::uint64_t from = std::max(gap.first, after + 1), to = std::min(gap.last, last);
    if (from <= to) count -= to - from + 1;
  }
  return count;
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
  const std::uint64_t lost = Counted(acked_seq_, next_seq_ - 1);
  acked_seq_ = next_seq_ - 1;
  unacked_.clear();
  recent_.clear();
  next_unsent_ = unacked_bytes_ = recent_bytes_ = 0;
  return lost;
}

Status SendWindow::CheckGiven(std::uint64_t durable_seq) const {
  if (durable_seq < next_seq_) return Status::Ok();
  return Status(Code::kDataLoss, "acknowledgement of record " + std::to_string(durable_seq) +
                                     ": this agent has sent numbers up to " +
                                     std::to_string(next_seq_ - 1) +
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
  return Counted(std::exchange(acked_seq_, durable_seq), durable_seq);
}

}  // namespace statcollect
