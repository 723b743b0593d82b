// Raw values of the last steps' tensors, in case something breaks: in memory of a fixed size, or in
// a file that is mapped (common/ring_format.h), which the kernel keeps when the process is killed.
//
//   tensor: reserved -> ready (Commit) -> written as a capture, or forgotten
//
// What is kept of a step is planned (ring_plan.h), so that the memory holds `steps` judged ones,
// the one at hand, and one that is recorded meanwhile. Steps are forgotten oldest first: when so
// many later ones are judged, or when the room is needed. A tensor that has no room all the same is
// counted. Values are not records until they are written: the ledger does not count them.
//
// Threads: any may call Wants, Reserve, Commit and GiveUp; only the batcher calls Judged and Write.
#ifndef STATCOLLECT_AGENT_STAGING_TENSOR_RING_H_
#define STATCOLLECT_AGENT_STAGING_TENSOR_RING_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "agent/staging/capture_queue.h"
#include "agent/staging/ring_plan.h"
#include "agent/staging/ring_spec.h"
#include "common/records.h"
#include "common/ring_format.h"
#include "common/status.h"
#include "common/thread_annotations.h"

namespace statcollect {

// Where the values are. Forked children do not have it.
class RingMemory {
 public:
  // `path`: of the file to create, mode 0600 and locked; empty: memory that ends with the process.
  // `hello`: the serialized AgentMessage that opens the session's stream.
  static Result<std::unique_ptr<RingMemory>> Make(const std::string& path, std::string_view hello,
                                                  const RingSpec& spec);
  ~RingMemory();  // removes the file, in the process that made it
  RingMemory(const RingMemory&) = delete;
  RingMemory& operator=(const RingMemory&) = delete;

  const ring::Head& head() const { return head_; }
  unsigned char* values() { return base_ + head_.values_at; }
  // `state` is stored last; a killed process leaves whole tensors only.
  void Publish(std::uint64_t slot, const ring::Slot& content);
  void Free(std::uint64_t slot);
  // The file is no longer needed; the memory stays.
  void RemoveFile();

 private:
  RingMemory() = default;
  ring::Slot* At(std::uint64_t slot);

  ring::Head head_;
  std::string path_;
  int fd_ = -1;
  int pid_ = 0;
  unsigned char* base_ = nullptr;
};

class TensorRing final : public CaptureKeeper {
 public:
  TensorRing(RingSpec spec, std::unique_ptr<RingMemory> memory);
  ~TensorRing() override;

  const RingSpec& spec() const { return spec_; }
  bool Wants(const TensorKey& key, std::uint64_t step) const { return spec_.Matches(key, step); }
  // Room for the first elements of the tensor, as many as the plan grants; nullptr if there is
  // none.
  CapturedTensor* Reserve(const CaptureTarget& target, DType dtype,
                          std::span<const std::int64_t> shape);
  void Commit(CapturedTensor* tensor) override;
  void GiveUp(CapturedTensor* tensor, std::string_view cause) override;

  // The agent has ended: nothing is left to be sent later.
  void RemoveFile() { memory_->RemoveFile(); }

  // The step is over, and nothing was wrong with it, or Write has been called.
  void Judged(std::uint64_t step);

  // As of RingPlan. Any thread.
  std::optional<RingPlan::Kept> kept();
  bool crowded();

  struct Written {
    std::uint64_t tensors = 0, bytes = 0;
    std::uint64_t first_step = 0, last_step = 0;  // of these
    std::uint64_t missing = 0;                    // had no room in the ring since the last Write
    std::uint64_t refused = 0;                    // did not fit into the queue
  };
  // Moves all whole tensors of steps up to this one to the queue.
  Written Write(std::uint64_t step, CaptureQueue* queue);

 private:
  enum class State { kReserved, kReady, kGone };
  struct Entry {
    CapturedTensor tensor;
    std::uint64_t slot = 0, offset = 0, room = 0;
    State state = State::kReserved;
  };

  // Where `room` bytes are free behind the last entry; absent: nowhere.
  std::optional<std::uint64_t> FindRoomLocked(std::uint64_t room) const
      STATCOLLECT_REQUIRES(mutex_);
  // False if a tensor of the oldest step is still being copied.
  bool ForgetOldestLocked() STATCOLLECT_REQUIRES(mutex_);
  void PopFrontLocked() STATCOLLECT_REQUIRES(mutex_);
  Entry& EntryOfLocked(const CapturedTensor* tensor) STATCOLLECT_REQUIRES(mutex_);

  const RingSpec spec_;
  const std::unique_ptr<RingMemory> memory_;
  Mutex mutex_;
  RingPlan plan_ STATCOLLECT_GUARDED_BY(mutex_);
  std::deque<std::unique_ptr<Entry>> entries_ STATCOLLECT_GUARDED_BY(mutex_);  // by age
  std::uint64_t next_slot_ STATCOLLECT_GUARDED_BY(mutex_) = 0;
  std::uint64_t missing_ STATCOLLECT_GUARDED_BY(mutex_) = 0;
};

}  // namespace statcollect

#endif  // STATCOLLECT_AGENT_STAGING_TENSOR_RING_H_
