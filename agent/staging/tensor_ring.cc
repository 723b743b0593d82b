#include "agent/staging/tensor_ring.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <set>
#include <system_error>
#include <utility>
#include <vector>

#include "common/capture_spec.h"
#include "common/names.h"
#include "common/shape.h"

namespace statcollect {
namespace {

// Shares that the ring holds: a step's for each of those that are kept, for the one at hand and the
// one after it; another for the gap at the end of the ring, which is smaller than a tensor.
RingPlan PlanOf(const RingSpec& spec, const ring::Head& head) {
  return {head.values_bytes / (spec.steps + 3), head.slots / (spec.steps + 2)};
}

Status NoRing(const std::string& where, int error) {
  return {Code::kInvalidArgument,
          "start the agent: ring: " + where + ": " + std::generic_category().message(error) +
              "; expected room for it; ask for a smaller ring, or give another spill_dir"};
}

}  // namespace

Result<std::unique_ptr<RingMemory>> RingMemory::Make(const std::string& path,
                                                     std::string_view hello, const RingSpec& spec) {
  std::unique_ptr<RingMemory> memory(new RingMemory);
  memory->head_ = ring::MakeHead(hello, spec.bytes, spec.steps);
  const std::uint64_t bytes = ring::FileBytes(memory->head_);
  int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  if (!path.empty()) {
    const std::string where = "file " + Printable(path, 1000);
    memory->fd_ = open(path.c_str(), O_CREAT | O_EXCL | O_RDWR | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (memory->fd_ < 0) return NoRing(where, errno);
    memory->path_ = path;
    memory->pid_ = getpid();
    (void)flock(memory->fd_, LOCK_EX | LOCK_NB);  // nobody else knows the name yet
    // A full disk would otherwise be a SIGBUS in the training.
    const int error = posix_fallocate(memory->fd_, 0, static_cast<off_t>(bytes));
    if (error != 0) return NoRing(where, error);
    flags = MAP_SHARED;
  }
  void* const base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags, memory->fd_, 0);
  if (base == MAP_FAILED) return NoRing("memory of " + std::to_string(bytes) + " bytes", errno);
  memory->base_ = static_cast<unsigned char*>(base);
  (void)madvise(base, bytes, MADV_DONTFORK);
  std::memcpy(memory->base_ + sizeof(ring::Head), hello.data(), hello.size());
  std::memcpy(memory->base_, &memory->head_, sizeof(ring::Head));
  return memory;
}

RingMemory::~RingMemory() {
  if (base_ != nullptr) munmap(base_, ring::FileBytes(head_));
  RemoveFile();
  if (fd_ >= 0) close(fd_);
}

void RingMemory::RemoveFile() {
  if (path_.empty() || pid_ != getpid()) return;
  (void)unlink(path_.c_str());
  path_.clear();
}

ring::Slot* RingMemory::At(std::uint64_t slot) {
  return reinterpret_cast<ring::Slot*>(base_ + head_.slots_at) + slot % head_.slots;
}

void RingMemory::Publish(std::uint64_t slot, const ring::Slot& content) {
  ring::Slot* const at = At(slot);
  ring::Slot hidden = content;
  hidden.state = ring::kFree;
  *at = hidden;
  std::atomic_ref(at->state).store(ring::kReady, std::memory_order_release);
}

void RingMemory::Free(std::uint64_t slot) {
  std::atomic_ref(At(slot)->state).store(ring::kFree, std::memory_order_release);
}

TensorRing::TensorRing(RingSpec spec, std::unique_ptr<RingMemory> memory)
    : spec_(std::move(spec)), memory_(std::move(memory)), plan_(PlanOf(spec_, memory_->head())) {}

TensorRing::~TensorRing() = default;

CapturedTensor* TensorRing::Reserve(const CaptureTarget& target, DType dtype,
                                    std::span<const std::int64_t> shape) {
  const std::uint64_t whole = NumelOf(shape) * DTypeBytes(dtype);
  MutexLock lock(mutex_);
  const auto granted = plan_.Grant(target.activation, target.step, whole);
  if (!granted) return nullptr;
  const std::uint64_t elements = CapturedElements(dtype, {shape.begin(), shape.end()}, *granted);
  const std::uint64_t bytes = elements * DTypeBytes(dtype);
  const std::uint64_t room = RingRoom(bytes);
  std::optional<std::uint64_t> offset;
  while (true) {
    if (entries_.size() < memory_->head().slots) offset = FindRoomLocked(room);
    if (offset) break;
    if (entries_.empty() || entries_.front()->tensor.target().step >= target.step ||
        !ForgetOldestLocked()) {
      ++missing_;
      return nullptr;
    }
  }
  auto entry = std::make_unique<Entry>(
      Entry{.tensor = {this, target, elements, bytes, memory_->values() + *offset},
            .slot = next_slot_++,
            .offset = *offset,
            .room = room});
  entries_.push_back(std::move(entry));
  return &entries_.back()->tensor;
}

std::optional<std::uint64_t> TensorRing::FindRoomLocked(std::uint64_t room) const {
  const std::uint64_t all = memory_->head().values_bytes;
  if (entries_.empty()) return room <= all ? std::optional<std::uint64_t>(0) : std::nullopt;
  const std::uint64_t begin = entries_.front()->offset;
  const std::uint64_t end = entries_.back()->offset + entries_.back()->room;
  if (end > begin) {  // free: behind the last, and before the first
    if (room <= all - end) return end;
    return room <= begin ? std::optional<std::uint64_t>(0) : std::nullopt;
  }
  return room <= begin - end ? std::optional(end) : std::nullopt;
}

bool TensorRing::ForgetOldestLocked() {
  const std::uint64_t oldest = entries_.front()->tensor.target().step;
  const auto is_of_it = [&](const auto& entry) { return entry->tensor.target().step == oldest; };
  const auto end = std::find_if_not(entries_.begin(), entries_.end(), is_of_it);
  const bool busy = std::any_of(entries_.begin(), end,
                                [](const auto& entry) { return entry->state == State::kReserved; });
  if (busy) return false;
  while (!entries_.empty() && is_of_it(entries_.front())) PopFrontLocked();
  return true;
}

void TensorRing::PopFrontLocked() {
  if (entries_.front()->state == State::kReady) memory_->Free(entries_.front()->slot);
  entries_.pop_front();
}

TensorRing::Entry& TensorRing::EntryOfLocked(const CapturedTensor* tensor) {
  // The newest ones are committed first.
  return **std::find_if(entries_.rbegin(), entries_.rend(),
                        [&](const auto& entry) { return &entry->tensor == tensor; });
}

void TensorRing::Commit(CapturedTensor* tensor) {
  MutexLock lock(mutex_);
  Entry& entry = EntryOfLocked(tensor);
  entry.state = State::kReady;
  const CaptureTarget& target = tensor->target();
  memory_->Publish(entry.slot, {.activation = target.activation,
                                .layout = target.layout,
                                .step = target.step,
                                .elements = tensor->elements(),
                                .offset = entry.offset,
                                .bytes = tensor->bytes()});
}

void TensorRing::GiveUp(CapturedTensor* tensor, std::string_view) {
  MutexLock lock(mutex_);
  ++missing_;
  EntryOfLocked(tensor).state = State::kGone;
}

void TensorRing::Judged(std::uint64_t step) {
  MutexLock lock(mutex_);
  std::set<std::uint64_t> judged;
  for (const auto& entry : entries_) {
    if (entry->tensor.target().step <= step)
      judged.insert(judged.end(), entry->tensor.target().step);
  }
  for (; judged.size() > spec_.steps; judged.erase(judged.begin())) {
    if (!ForgetOldestLocked()) return;
  }
}

std::optional<RingPlan::Kept> TensorRing::kept() {
  MutexLock lock(mutex_);
  return plan_.kept();
}

bool TensorRing::crowded() {
  MutexLock lock(mutex_);
  return plan_.crowded();
}

TensorRing::Written TensorRing::Write(std::uint64_t step, CaptureQueue* queue) {
  Written written;
  std::vector<Entry*> taken;  // stay where they are until they are gone
  {
    MutexLock lock(mutex_);
    for (const auto& entry : entries_) {
      if (entry->tensor.target().step > step || entry->state != State::kReady) continue;
      entry->state = State::kReserved;
      taken.push_back(entry.get());
    }
    written.missing = std::exchange(missing_, 0);
  }
  for (Entry* const entry : taken) {  // without the mutex: training goes on meanwhile
    CapturedTensor& kept = entry->tensor;
    CaptureTarget target = kept.target();
    CapturedTensor* const sent = queue->Reserve(target, kept.elements(), kept.bytes());
    if (sent == nullptr) {
      ++written.refused;
      continue;
    }
    std::copy_n(kept.data(), kept.bytes(), sent->data());
    queue->Commit(sent);
    if (written.tensors++ == 0) written.first_step = target.step;
    written.last_step = std::max(written.last_step, target.step);
    written.bytes += kept.bytes();
  }
  MutexLock lock(mutex_);
  for (Entry* const entry : taken) {
    memory_->Free(entry->slot);
    entry->state = State::kGone;
  }
  while (!entries_.empty() && entries_.front()->state == State::kGone) entries_.pop_front();
  return written;
}

}  // namespace statcollect
