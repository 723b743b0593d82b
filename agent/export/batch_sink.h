// Where the batcher puts its batches: the exporter in the product, a fake in tests.
#ifndef STATCOLLECT_AGENT_EXPORT_BATCH_SINK_H_
#define STATCOLLECT_AGENT_EXPORT_BATCH_SINK_H_

#include <chrono>
#include <cstddef>
#include <optional>

#include "common/records.h"

namespace statcollect {

class BatchSink {
 public:
  virtual ~BatchSink() = default;
  // Periodic work of the sink, such as writing to a file. Returns the latest time of the next call.
  virtual std::chrono::steady_clock::time_point Tend() {
    return std::chrono::steady_clock::time_point::max();
  }
  // Whether the sink accepts a batch now. Only Submit reduces the room.
  virtual bool HasRoom() = 0;
  // The largest encoded batch, in bytes.
  virtual std::size_t BatchBytesMax() = 0;
  // Numbers the batch and takes ownership. `bytes` is at least its encoded size. Precondition:
  // HasRoom().
  virtual void Submit(RecordBatch batch, std::size_t bytes) = 0;
  // Whether the collector accepts raw values of tensors; empty until it has answered.
  virtual std::optional<bool> TakesCaptures() { return true; }
  // True once nothing will ever be sent again.
  virtual bool Failed() = 0;
};

}  // namespace statcollect

#endif  // STATCOLLECT_AGENT_EXPORT_BATCH_SINK_H_
