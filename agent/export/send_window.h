// Numbered batches between the batcher and the collector: unsent batches, sent batches that are not
// acknowledged, and a ring of recently acknowledged ones, kept in case the collector comes back
// without them.
//
// Invariants:
// (1) Add assigns sequence numbers from 1 without gaps, and uses none twice, so that a number means
// the same
//     record on every store that the session meets (docs/decisions/0035). Records that a store
//     lacks and that are not held any more become a gap. Two exceptions: the batches that report
//     such a loss take the gap's last numbers, for that store only; and Renumber, for collectors
//     that know no gaps.
// (2) A number is counted as acknowledged at most once, unless Resume takes that back.
// (3) No batch is forgotten before it is acknowledged.
// Not thread-safe: guarded by the exporter.
#ifndef STATCOLLECT_AGENT_EXPORT_SEND_WINDOW_H_
#define STATCOLLECT_AGENT_EXPORT_SEND_WINDOW_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "agent/export/encoded_batch.h"
#include "common/status.h"

namespace statcollect {

// The collector's limits, from its welcome; the defaults hold until then.
struct StreamLimits {
  std::size_t message_bytes_max = 4u << 20;
  std::size_t window_batches_max = 8;
  std::size_t window_bytes_max = 16u << 20;
  std::size_t capture_chunk_bytes_max = 0;  // 0: the collector refuses raw values
};

class SendWindow {
 public:
  static constexpr std::size_t kRecentBatchesMax = 4096;
  static constexpr std::size_t kRecentBytesMax = 8u << 20;

  struct Resumed {
    std::uint64_t newly_acked = 0;
    std::uint64_t lost = 0;      // acknowledged records that are not stored
    std::uint64_t gone = 0;      // of `lost`: records not held here any more
    std::uint64_t void_now = 0;  // pending records that report its losses to a different store
    // Numbers between the watermark and the first record held that nothing held accounts for. If
    // not 0, call Bridge next, or Renumber if the collector is unknown.
    std::uint64_t missing = 0;
  };

  void SetLimits(const StreamLimits& limits) { limits_ = limits; }
  // The largest allowed size of the next batch, in bytes.
  std::size_t BatchBytesMax() const;
  bool HasRoom() const;

  // Numbers the batch and adds it. Precondition: HasRoom(), or the batch repairs a loss.
  void Add(EncodedBatch batch);

  // The next batch not sent on this stream, nullptr if there is none.
  std::shared_ptr<const EncodedBatch> TakeNext();
  bool HasUnsent() const { return next_unsent_ < unacked_.size(); }

  // The collector has everything up to durable_seq. Returns the number of newly acknowledged
  // records. kDataLoss: the number was never assigned.
  Result<std::uint64_t> Ack(std::uint64_t durable_seq);
  // A new stream begins; the store has everything up to durable_seq. What it lacks becomes unsent
  // again and does not count as acknowledged any more. kDataLoss: the number was never assigned.
  Result<Resumed> Resume(std::uint64_t durable_seq, const StoreIdentity& store = {});
  // After a Resume with missing numbers: puts `first` before the batches held, under the last of
  // the missing numbers. Precondition: at most RoomBefore() batches of one record each.
  void Bridge(std::vector<EncodedBatch> first, const StoreIdentity& store);
  std::uint64_t RoomBefore() const;
  // Forgets the first batch held, which counts as missing from now on. Returns the number of its
  // records.
  std::uint64_t DropFirst();
  // Instead of Bridge: renumbers `first` and all batches held from the watermark on. On a store
  // that has the session already, the numbers may mean other records.
  void Renumber(std::vector<EncodedBatch> first);
  // The definitions sent before the first batch held; `otherwise` if none is held.
  DefinitionCounts DefinedBefore(const DefinitionCounts& otherwise) const;

  // --- the spill file, which holds a run of consecutive batches
  using Entry = std::shared_ptr<EncodedBatch>;
  // The batches held after the last one in the file, acknowledged or not; all if none is in the
  // file.
  std::vector<Entry> BehindFile() const;
  // The first batch held that is in the file; nullptr if none is.
  const EncodedBatch* FirstInFile() const;
  // Whether a batch in the file is not acknowledged yet.
  bool UnackedInFile() const;
  // Whether an unacknowledged batch precedes the first one in the file; the file is then incomplete
  // on its own.
  bool UnackedBeforeFile() const;
  void ForgetFile();

  bool empty() const { return unacked_.empty(); }
  // Records not acknowledged, in the file or not.
  std::uint64_t UnackedRecords(bool in_file) const;
  // Records sent on this stream and not acknowledged.
  std::uint64_t SentRecords() const;
  // The number that the next batch gets.
  std::uint64_t next_seq() const { return next_seq_; }
  // Lowest number still held for sending.
  std::uint64_t first_unacked_seq() const;
  // Forgets everything unacknowledged; returns how many records that loses.
  std::uint64_t Clear();

 private:
  struct Range {
    std::uint64_t first = 0, last = 0;
  };

  Status CheckGiven(std::uint64_t durable_seq) const;
  // Moves what the store lacks from the ring to what is unacknowledged, and forgets what was for
  // another store.
  void TakeBack(std::uint64_t durable_seq, const StoreIdentity& store, Resumed* resumed);
  // The numbers in (after, last] that were given to a record which still counts as acknowledged or
  // pending.
  std::uint64_t Counted(std::uint64_t after, std::uint64_t last) const;
  // Everything from `after` + 1 to the first number held is one gap.
  void OpenGap(std::uint64_t after);
  void PushFront(std::vector<EncodedBatch> first);
  void MarkSkipped();
  void Free(std::uint64_t durable_seq);
  std::uint64_t CountAcked(std::uint64_t durable_seq);

  StreamLimits limits_;
  std::uint64_t next_seq_ = 1;
  std::uint64_t acked_seq_ = 0;  // the collector has reported everything up to it as stored
  std::deque<Entry> unacked_;    // in order of their numbers
  std::size_t next_unsent_ = 0;  // index in unacked_
  std::size_t unacked_bytes_ = 0;
  std::deque<Entry> recent_;  // acknowledged, directly before unacked_
  std::size_t recent_bytes_ = 0;
  // Numbers whose records count as dropped, ascending; all below what is held. One for each loss
  // that was not followed by a larger one.
  std::vector<Range> gaps_;
};

}  // namespace statcollect

#endif  // STATCOLLECT_AGENT_EXPORT_SEND_WINDOW_H_
