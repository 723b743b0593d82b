// Where the batcher puts its batches: the exporter in the product, a fake in tests.
#ifndef STATCOLLECT_AGENT_EXPORT_BATCH_SINK_H_
#define STATCOLLECT_AGENT_EXPORT_BATCH_SINK_H_

#include <cstddef>

#include "common/records.h"

namespace statcollect {

class BatchSink {
 public:
  virtual ~BatchSink() = default;
  // Whether the send window takes another batch now. Only Submit takes room away.
  virtual bool HasRoom() = 0;
  // Most encoded bytes of a batch.
  virtual std::size_t BatchBytesMax() = 0;
  // Numbers the batch and takes it over. `bytes` is at least its encoded size. Precondition: HasRoom().
  virtual void Submit(RecordBatch batch, std::size_t bytes) = 0;
  // True once nothing will ever be sent again.
  virtual bool Failed() = 0;
};

}  // namespace statcollect

#endif  // STATCOLLECT_AGENT_EXPORT_BATCH_SINK_H_
