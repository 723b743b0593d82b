// Batches on their way into ClickHouse: prepared by the streams' threads, written by Append.
#ifndef STATCOLLECT_SERVER_STORE_CLICKHOUSE_BATCH_H_
#define STATCOLLECT_SERVER_STORE_CLICKHOUSE_BATCH_H_

#include <atomic>
#include <cstddef>
#include <memory>
#include <vector>

#include "server/store/clickhouse/schema.h"
#include "server/store/codec/stat_encoder.h"
#include "server/store/record_writer.h"

namespace statcollect {

inline constexpr std::uint8_t kChunkVersion = 1;  // of a chunk's sealed data

// Everything of a batch except the rank's state.
class ClickHouseBatch final : public PreparedBatch {
 public:
  std::vector<RecordRow> rows;
  std::size_t bytes = 0;  // of the values
};

// No block is an alias of another run's: each run's partition stands alone, and is dropped alone.
class ClickHouseStreamWriter final : public StreamWriter {
 public:
  ClickHouseStreamWriter(AttemptId attempt, std::uint32_t rank,
                         std::atomic<std::size_t>& key_frame_bytes)
      : encoder_(attempt, rank, {.find_twin = {}, .key_frame_bytes = &key_frame_bytes}) {}

  std::unique_ptr<PreparedBatch> Prepare(const RecordBatch& records) override;

 private:
  StatEncoder encoder_;
};

}  // namespace statcollect

#endif  // STATCOLLECT_SERVER_STORE_CLICKHOUSE_BATCH_H_
