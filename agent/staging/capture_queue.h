// Raw values of tensors on their way to the batcher, which takes them chunk by chunk. Each chunk is
// a record and counts in the ledger from Reserve on.
//
//   tensor: reserved -> ready (Commit) -> sent, chunk by chunk; or reserved -> given up
//
// Invariants: (1) At most kBytesMax bytes of values are held. (2) A reserved tensor has one writer.
// (3) The chunks of a tensor leave in order. Threads: any may call Reserve, Commit and GiveUp; only
// the batcher calls the rest; the closing thread calls DropAll after the batcher has stopped.
#ifndef STATCOLLECT_AGENT_STAGING_CAPTURE_QUEUE_H_
#define STATCOLLECT_AGENT_STAGING_CAPTURE_QUEUE_H_

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "agent/staging/ledger.h"
#include "common/records.h"
#include "common/thread_annotations.h"

namespace statcollect {

// Causes of loss that only captures have; the others are in ledger.h.
inline constexpr std::string_view kDropCaptureMemory =
    "capture_memory";  // too many values already wait
inline constexpr std::string_view kDropCaptureStrides =
    "capture_strides";  // of a GPU tensor, spread over too much memory
inline constexpr std::string_view kDropCaptureRefused =
    "capture_refused";  // the collector is too old for captures

// The tensor whose values are wanted, and the requests that want them.
struct CaptureTarget {
  std::uint32_t activation = 0;  // TensorDef::id
  std::uint32_t layout = 0;      // Layout::id
  std::uint64_t step = 0;
  std::uint64_t bytes_max = 0;
  bool send = true;   // as soon as possible
  bool ring = false;  // it is for the ring (tensor_ring.h), perhaps besides
  std::string
      requests;  // the collector's request numbers, separated by commas; empty: the program's own
};

class CapturedTensor;

// Who holds captured tensors: the queue, or the ring.
class CaptureKeeper {
 public:
  virtual ~CaptureKeeper() = default;
  // The values are complete.
  virtual void Commit(CapturedTensor* tensor) = 0;
  // The values will never be complete; the loss is counted under this cause.
  virtual void GiveUp(CapturedTensor* tensor, std::string_view cause) = 0;
};

class CapturedTensor {
 public:
  CapturedTensor(CaptureKeeper* keeper, CaptureTarget target, std::uint64_t elements,
                 std::uint64_t bytes, unsigned char* data)
      : keeper_(keeper),
        target_(std::move(target)),
        elements_(elements),
        bytes_(bytes),
        data_(data) {}
  CaptureKeeper* keeper() { return keeper_; }
  const CaptureTarget& target() const { return target_; }
  std::uint64_t elements() const { return elements_; }
  std::uint64_t bytes() const { return bytes_; }
  unsigned char* data() { return data_; }  // `bytes` of them, for the writer

 private:
  friend class CaptureQueue;
  CaptureKeeper* const keeper_;
  CaptureTarget target_;
  std::uint64_t elements_ = 0, bytes_ = 0, sent_ = 0;
  unsigned char* data_ = nullptr;
  std::unique_ptr<unsigned char[]> own_;  // of the queue's
  bool ready_ = false, begun_ = false;
};

class CaptureQueue final : public CaptureKeeper {
 public:
  static constexpr std::uint64_t kBytesMax = std::uint64_t{128} << 20;
  static constexpr std::size_t kChunkBytes = std::size_t{512} << 10;  // two fit into a batch

  explicit CaptureQueue(Ledger* ledger) : ledger_(ledger) {}

  // Reserves room for `elements` elements in `bytes` bytes. nullptr if the queue is full or memory
  // is short; the loss is then counted.
  CapturedTensor* Reserve(CaptureTarget target, std::uint64_t elements, std::uint64_t bytes);
  void Commit(CapturedTensor* tensor) override;
  void GiveUp(CapturedTensor* tensor, std::string_view cause) override;

  bool empty() const;
  bool HasReady() const;  // whether Pop has a chunk to return
  // The first step whose values have not all been taken, if any.
  std::optional<std::uint64_t> OldestStep() const;

  struct Next {
    CaptureTarget target;
    std::uint64_t elements = 0;
    std::size_t bytes = 0;  // of the chunk
    bool last = false;      // of the tensor
  };
  // Describes the chunk that Pop will return. Precondition of both: HasReady().
  Next Peek() const;
  CaptureChunk Pop();
  // Forgets everything; returns the number of chunks lost. Reserved tensors are counted later, when
  // their writers are done with them.
  std::uint64_t DropAll();

 private:
  static std::uint64_t ChunksOf(std::uint64_t bytes);
  using Tensors = std::list<std::unique_ptr<CapturedTensor>>;
  Tensors::const_iterator FirstReadyLocked() const STATCOLLECT_REQUIRES(mutex_);
  void EraseLocked(const CapturedTensor* tensor) STATCOLLECT_REQUIRES(mutex_);

  Ledger* const ledger_;
  mutable Mutex mutex_;
  Tensors tensors_ STATCOLLECT_GUARDED_BY(mutex_);  // in the order of Reserve
  std::uint64_t bytes_ STATCOLLECT_GUARDED_BY(mutex_) = 0;
  bool dropped_ STATCOLLECT_GUARDED_BY(mutex_) = false;
};

}  // namespace statcollect

#endif  // STATCOLLECT_AGENT_STAGING_CAPTURE_QUEUE_H_
