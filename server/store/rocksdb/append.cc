#include "server/store/rocksdb/append.h"

#include <string>

#include "server/store/codec/batch_encoder.h"
#include "server/store/codec/catalogue.h"
#include "server/store/rocksdb/catalogue_keys.h"
#include "server/store/rocksdb/families.h"
#include "server/store/rocksdb/record_keys.h"
#include "server/store/rocksdb/records.h"
#include "server/store/rocksdb/util.h"
#include "server/store/rocksdb/values.h"

namespace statcollect {
namespace {

// About what a batch of them takes, so that it need not grow.
std::size_t BytesOf(std::span<const AppendItem> items) {
  std::size_t bytes = 4096 * items.size();
  for (const AppendItem& item : items) {
    if (item.prepared == nullptr) continue;
    const EncodedBatch& prepared = EncodedOf(*item.prepared);
    for (const EncodedStatBlock& block : prepared.blocks)
      bytes += 128 + block.own.stats.size() + block.own.sums.size();
    for (const EncodedRow& row : prepared.rows) bytes += 48 + row.value.size();
  }
  return bytes;
}

}  // namespace

std::unique_ptr<StreamWriter> Appender::NewWriter(AttemptId attempt, std::uint32_t rank) {
  return std::make_unique<BatchEncoder>(
      attempt, rank,
      StatEncoder::Options{.find_twin =
                               [this, attempt](const BlockDigest& digest) {
                                 return aliases_.FindTwin(digest, attempt);
                               },
                           .key_frame_bytes = &key_frame_bytes_});
}

Status Appender::Append(std::span<const AppendItem> items) {
  // Held during the write, so that the removal of an attempt sees all aliases of its blocks.
  const auto targets = aliases_.HoldTargets();
  STATCOLLECT_ASSIGN_OR_RETURN(const auto database, database_.Pin());
  rocksdb::WriteBatch batch(BytesOf(items));
  Added added;
  for (const AppendItem& item : items)
    STATCOLLECT_RETURN_IF_ERROR(AddItem(*database, batch, item, &added));
  STATCOLLECT_RETURN_IF_ERROR(database_.Write("append " + std::to_string(items.size()) + " batches",
                                              *database, batch, fsync_));
  // Only now: what a failed write held has to be written with the next one.
  aliases_.Note(added.pairs);
  MutexLock lock(with_info_mutex_);
  with_info_.insert(added.with_info.begin(), added.with_info.end());
  return Status::Ok();
}

Status Appender::AddItem(const Database& database, rocksdb::WriteBatch& batch,
                         const AppendItem& item, Added* added) {
  if (item.prepared != nullptr) {
    const EncodedBatch& prepared = EncodedOf(*item.prepared);
    for (const EncodedRow& row : prepared.rows)
      (void)batch.Put(database.families[FamilyOf(row.family)], KeyOf(item.attempt, item.rank, row),
                      row.value);
    for (const EncodedStatBlock& block : prepared.blocks)
      aliases_.Put(database, batch, block, item.attempt, &added->pairs);
  }
  (void)batch.Put(database.families[kCatalogue], RankKey('m', item.attempt, item.rank),
                  Encode(*item.meta));
  return AddInfo(database, batch, item, added);
}

// The content of a hello is large and does not change, so it is written once and not with each
// append.
Status Appender::AddInfo(const Database& database, rocksdb::WriteBatch& batch,
                         const AppendItem& item, Added* added) {
  {
    MutexLock lock(with_info_mutex_);
    if (with_info_.contains({item.attempt, item.rank})) return Status::Ok();
  }
  if (!added->with_info.emplace(item.attempt, item.rank).second) return Status::Ok();
  const std::string key = RankKey('i', item.attempt, item.rank);
  STATCOLLECT_ASSIGN_OR_RETURN(
      const auto stored,
      ReadBytes(database, "the hello" + OfRank(item.attempt, item.rank), kCatalogue, key));
  if (!stored) (void)batch.Put(database.families[kCatalogue], key, Encode(item.meta->info));
  return Status::Ok();
}

Status Appender::PutRank(AttemptId attempt, std::uint32_t rank, const RankMeta& meta) {
  STATCOLLECT_ASSIGN_OR_RETURN(const auto database, database_.Pin());
  rocksdb::WriteBatch batch;
  (void)batch.Put(database->families[kCatalogue], RankKey('i', attempt, rank), Encode(meta.info));
  (void)batch.Put(database->families[kCatalogue], RankKey('m', attempt, rank), Encode(meta));
  STATCOLLECT_RETURN_IF_ERROR(
      database_.Write("write rank " + std::to_string(rank), *database, batch, true));
  MutexLock lock(with_info_mutex_);
  with_info_.emplace(attempt, rank);
  return Status::Ok();
}

Status Appender::PutEvents(AttemptId attempt, std::span<const CollectorEvent> events) {
  if (!live_.Contains(attempt))
    return {Code::kNotFound,
            "add events: attempt " + std::to_string(attempt) + " has been removed"};
  STATCOLLECT_ASSIGN_OR_RETURN(const auto database, database_.Pin());
  rocksdb::WriteBatch batch;
  for (const CollectorEvent& own : events) {
    const std::string key = StepPrefix(attempt, own.rank, own.event.step) +
                            KeyBuilder().U64(kCollectorsOwn | own.number).Take();
    (void)batch.Put(database->families[kEvents], key, Encode(own.event));
  }
  return database_.Write("add " + std::to_string(events.size()) + " events", *database, batch,
                         true);
}

void Appender::Forget() {
  MutexLock lock(with_info_mutex_);
  with_info_.clear();
}

}  // namespace statcollect
