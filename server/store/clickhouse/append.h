// Writes records: the committer's batches, the ranks' states, the collector's own events.
//
// The rows of an attempt in a group of batches are one insert into one partition, in pieces of
// whole batches: a batch becomes visible with its watermark, or not at all.
#ifndef STATCOLLECT_SERVER_STORE_CLICKHOUSE_APPEND_H_
#define STATCOLLECT_SERVER_STORE_CLICKHOUSE_APPEND_H_

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>

#include "common/status.h"
#include "common/thread_annotations.h"
#include "server/store/clickhouse/claims.h"
#include "server/store/clickhouse/engine.h"
#include "server/store/clickhouse/rank_rows.h"
#include "server/store/clickhouse/small_writes.h"
#include "server/store/record_writer.h"

namespace statcollect {

// The methods are those of Store, with the same contracts.
//
// Threads: any. Only one committer at a time calls Append.
class ClickHouseAppender {
 public:
  // Borrows them.
  ClickHouseAppender(Engine& engine, RankReads& reads)
      : engine_(engine), writes_(engine), claims_(engine, reads, writes_) {}

  std::unique_ptr<StreamWriter> NewWriter(AttemptId attempt, std::uint32_t rank);
  Result<std::optional<RankMeta>> Rank(AttemptId attempt, std::uint32_t rank);
  Result<std::optional<RankMeta>> ClaimRank(AttemptId attempt, std::uint32_t rank);
  Result<bool> EndRank(AttemptId attempt, std::uint32_t rank) {
    return claims_.End({attempt, rank});
  }
  Status Append(std::span<const AppendItem> items);
  Status PutRank(AttemptId attempt, std::uint32_t rank, const RankMeta& meta);
  // Of an attempt that is there.
  Status PutEvents(AttemptId attempt, std::span<const CollectorEvent> events);
  // The last failure of an Append, or why the engine still accepts nothing; Ok once it does.
  Status Recover();

 private:
  // Rows of one attempt, not written yet.
  struct Piece {
    ByteWriter rows;
    std::size_t count = 0;
    std::string token;
  };

  Status AppendItems(std::span<const AppendItem> items);
  void ReportOutcome(const Status& appended);
  Status AddBatch(const AppendItem& item, Piece* piece);
  Status AddHello(const AppendItem& item, const RowStamp& stamp, Piece* piece);
  Status Write(Piece* piece);

  Engine& engine_;
  SmallWrites writes_;
  Claims claims_;
  std::atomic<std::size_t> key_frame_bytes_{0};  // shared by the streams' encoders
  std::atomic<std::uint64_t> own_events_{0};     // rises with each event of the collector's own
  std::string reported_;  // the last failure that was logged; of the committer's thread
  Mutex mutex_;           // not held while the engine is asked
  Status failure_ STATCOLLECT_GUARDED_BY(mutex_);
  std::set<Claims::Place> with_hello_
      STATCOLLECT_GUARDED_BY(mutex_);  // whose hello is known to be stored
};

}  // namespace statcollect

#endif  // STATCOLLECT_SERVER_STORE_CLICKHOUSE_APPEND_H_
