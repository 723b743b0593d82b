#include "agent/staging/side_queue.h"

#include <utility>

namespace statcollect {
namespace {

// Tags, lengths and numbers of a message, generously.
constexpr std::size_t kMessageBytes = 64;
constexpr std::size_t kFieldBytes = 16;
constexpr std::size_t kVarintBytes = 10;

struct BytesOf {
  std::size_t operator()(const ScalarRecord& r) const { return kMessageBytes + r.name.size(); }
  std::size_t operator()(const StepRecord&) const { return kMessageBytes; }
  std::size_t operator()(const MemoryRecord& r) const {
    return kMessageBytes + r.device.size() + r.module.size() + r.bytes.size() * kVarintBytes;
  }
  std::size_t operator()(const DensityRecord& r) const {
    return 2 * kMessageBytes + r.input.size() + r.valid_per_sample.size() * kVarintBytes;
  }
  std::size_t operator()(const SettingRecord& r) const {
    return kMessageBytes + r.name.size() + r.value.size();
  }
  std::size_t operator()(const ExponentRecord& r) const {
    return kMessageBytes + r.counts.size() * kVarintBytes;
  }
  std::size_t operator()(const TokenRecord& r) const {
    constexpr std::size_t kRowBytes = 8 + kVarintBytes + 4 + 8 + 4 * kRowSketch;
    return 2 * kMessageBytes + r.tap.size() + r.rows.size() * kRowBytes;
  }
  std::size_t operator()(const EventRecord& r) const {
    std::size_t bytes = kMessageBytes + r.kind.size() + r.text.size();
    for (const auto& [key, value] : r.fields) bytes += kFieldBytes + key.size() + value.size();
    return bytes;
  }
};

bool IsStepEnd(const SideRecord& record) { return std::holds_alternative<StepRecord>(record); }

}  // namespace

std::size_t EncodedBytesMax(const SideRecord& record) { return std::visit(BytesOf{}, record); }

bool SideQueue::TryPush(SideRecord record, std::uint64_t after_ticket, bool* was_empty,
                        std::uint64_t* awaited) {
  const std::size_t bytes = EncodedBytesMax(record);
  MutexLock lock(mutex_);
  *was_empty = entries_.empty();
  if (entries_.size() >= records_max_ || bytes_ + bytes > bytes_max_) return false;
  const bool step_end = IsStepEnd(record);
  entries_.emplace_hint(entries_.end(), pushed_,
                        Entry{.record = std::move(record),
                              .after_ticket = after_ticket,
                              .bytes = bytes,
                              .awaited = awaited != nullptr});
  if (awaited != nullptr) *awaited = pushed_;
  ++pushed_;
  bytes_ += bytes;
  step_ends_ += step_end ? 1 : 0;
  if (*was_empty) FrontChangedLocked();
  return true;
}

std::optional<SideQueue::Entry> SideQueue::PopIf(std::uint64_t ring_head, std::size_t bytes_max,
                                                 std::optional<std::uint64_t> held_step,
                                                 bool* held_back) {
  MutexLock lock(mutex_);
  *held_back = false;
  const auto front = entries_.begin();
  if (front == entries_.end() || front->second.after_ticket > ring_head) return std::nullopt;
  const auto* end = std::get_if<StepRecord>(&front->second.record);
  if (front->second.awaited || front->second.bytes > bytes_max ||
      (end != nullptr && held_step && end->step >= *held_step)) {
    *held_back = true;
    return std::nullopt;
  }
  return TakeLocked(front);
}

SideQueue::Entry SideQueue::TakeLocked(std::map<std::uint64_t, Entry>::iterator at) {
  Entry entry = std::move(at->second);
  entries_.erase(at);
  bytes_ -= entry.bytes;
  step_ends_ -= IsStepEnd(entry.record) ? 1 : 0;
  FrontChangedLocked();
  return entry;
}

bool SideQueue::Remove(std::uint64_t number) {
  MutexLock lock(mutex_);
  const auto found = entries_.find(number);
  if (found == entries_.end()) return false;
  (void)TakeLocked(found);
  return true;
}

void SideQueue::FrontChangedLocked() {
  front_ticket_.store(entries_.empty() ? kNone : entries_.begin()->second.after_ticket,
                      std::memory_order_release);
}

std::size_t SideQueue::size() const {
  MutexLock lock(mutex_);
  return entries_.size();
}

bool SideQueue::HasStepEnd() const {
  MutexLock lock(mutex_);
  return step_ends_ > 0;
}

std::uint64_t SideQueue::Clear() {
  MutexLock lock(mutex_);
  const std::uint64_t cleared = entries_.size();
  entries_.clear();
  bytes_ = 0;
  step_ends_ = 0;
  FrontChangedLocked();
  return cleared;
}

}  // namespace statcollect
