// Raw values of tensors on their way to the batcher, which takes them chunk by chunk. A chunk is a record: it
// is in the ledger from Reserve on.
//
//   tensor: reserved -> ready (Commit) -> sent, chunk by chunk; or reserved -> given up
//
// Invariants: (1) At most kBytesMax bytes of values are held. (2) A reserved tensor has one writer. (3) The
// chunks of a tensor leave in order and one after the other. Threads: Reserve, Commit and GiveUp from any;
// the rest from the batcher; DropAll from whoever closes, once the batcher has stopped.
#ifndef STATCOLLECT_AGENT_STAGING_CAPTURE_QUEUE_H_
#define STATCOLLECT_AGENT_STAGING_CAPTURE_QUEUE_H_

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "agent/staging/ledger.h"
#include "common/records.h"
#include "common/thread_annotations.h"

namespace statcollect {

inline constexpr std::string_view kDropCaptureMemory = "capture_memory";  // too many values wait already
inline constexpr std::string_view kDropCaptureStrides =
    "capture_strides";  // of a GPU's tensor, spread over too much memory
inline constexpr std::string_view kDropCaptureRefused =
    "capture_refused";  // the collector is of a release that knows no captures

// Whose values are wanted, and for whom.
struct CaptureTarget {
  std::uint32_t activation = 0;  // TensorDef::id
  std::uint32_t layout = 0;      // Layout::id
  std::uint64_t step = 0;
  std::uint64_t bytes_max = 0;
  std::string
      requests;  // numbers of the collector's requests, separated by commas; empty: the program's own wish
};

class CapturedTensor {
 public:
  const CaptureTarget& target() const { return target_; }
  std::uint64_t elements() const { return elements_; }
  std::uint64_t bytes() const { return bytes_; }
  unsigned char* data() { return data_.get(); }  // `bytes` of them, for the writer

 private:
  friend class CaptureQueue;
  CaptureTarget target_;
  std::uint64_t elements_ = 0, bytes_ = 0, sent_ = 0;
  std::unique_ptr<unsigned char[]> data_;
  bool ready_ = false, begun_ = false;
};

class CaptureQueue {
 public:
  static constexpr std::uint64_t kBytesMax = std::uint64_t{128} << 20;
  static constexpr std::size_t kChunkBytes = std::size_t{512} << 10;  // two fit into a batch

  explicit CaptureQueue(Ledger* ledger) : ledger_(ledger) {}

  // Room for `elements` elements in `bytes` bytes. nullptr: there is none, or no memory; the loss is counted.
  CapturedTensor* Reserve(CaptureTarget target, std::uint64_t elements, std::uint64_t bytes);
  // The values are there.
  void Commit(CapturedTensor* tensor);
  // They will never be; the loss is counted for this cause.
  void GiveUp(CapturedTensor* tensor, std::string_view cause);

  bool empty() const;     // nothing is held
  bool HasReady() const;  // there is a chunk to take
  // The first step with values that have not left; nothing: none.
  std::optional<std::uint64_t> OldestStep() const;

  struct Next {
    CaptureTarget target;
    std::uint64_t elements = 0;
    std::size_t bytes = 0;  // of the chunk
    bool last = false;      // of the tensor
  };
  // The chunk that Pop gives. Precondition of both: HasReady().
  Next Peek() const;
  CaptureChunk Pop();
  // Forgets everything; returns how many chunks that loses. What is reserved is counted when its writer is
  // done with it.
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
