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
  // What the sink has to do from time to time, such as writing to a file. Returns when to call again, at the
  // latest.
  virtual std::chrono::steady_clock::time_point Tend() {
    return std::chrono::steady_clock::time_point::max();
  }
  // Whether the sink takes another batch now. Only Submit takes room away.
  virtual bool HasRoom() = 0;
  // Most encoded bytes of a batch.
  virtual std::size_t BatchBytesMax() = 0;
  // Numbers the batch and takes it over. `bytes` is at least its encoded size. Precondition: HasRoom().
  virtual void Submit(RecordBatch batch, std::size_t bytes) = 0;
  // Whether the collector takes raw values of tensors; nothing: it has not said so yet.
  virtual std::optional<bool> TakesCaptures() { return true; }
  // True once nothing will ever be sent again.
  virtual bool Failed() = 0;
};

}  // namespace statcollect

#endif  // STATCOLLECT_AGENT_EXPORT_BATCH_SINK_H_
