#include "server/store/clickhouse/append.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>

#include "server/store/byte_io.h"
#include "server/store/clickhouse/entries.h"
#include "server/store/clickhouse/schema.h"
#include "server/store/codec/batch_encoder.h"
#include "server/store/codec/catalogue.h"

namespace statcollect {
namespace {

// In keys of events: agents number their records from 1, the collector from here.
constexpr std::uint64_t kOwnEvents = std::uint64_t{1} << 63;

std::string TokenOf(const AppendItem& item, const RowStamp& stamp) {
  return std::to_string(item.attempt) + "-" + std::to_string(item.rank) + "-" +
         std::to_string(stamp.epoch) + "-" + std::to_string(stamp.n);
}

std::string NameOf(AttemptId attempt, std::uint32_t rank) {
  return "rank " + std::to_string(rank) + " of attempt " + std::to_string(attempt);
}

void AddBlockRows(const AppendItem& item, const EncodedStatBlock& block, const RowStamp& stamp,
                  ByteWriter* to) {
  RecordRow row{.family = RowFamily::kSums,
                .step = block.key.step,
                .item = block.key.activation,
                .value = block.own.sums};
  if (!row.value.empty()) AddRecordRow(item.attempt, item.rank, row, stamp, to);
  row.family = RowFamily::kBlock;
  row.records = static_cast<std::uint32_t>(block.records);
  row.digest = block.digest;
  row.value = block.own.stats;
  AddRecordRow(item.attempt, item.rank, row, stamp, to);
}

}  // namespace

Result<std::optional<RankMeta>> ClickHouseAppender::Rank(AttemptId attempt, std::uint32_t rank) {
  STATCOLLECT_ASSIGN_OR_RETURN(const auto rows, claims_.Read({attempt, rank}));
  return rows.Meta(NameOf(attempt, rank));
}

Result<std::optional<RankMeta>> ClickHouseAppender::ClaimRank(AttemptId attempt,
                                                              std::uint32_t rank) {
  STATCOLLECT_ASSIGN_OR_RETURN(const auto rows, claims_.Claim({attempt, rank}));
  if (rows.has_hello()) {
    MutexLock lock(mutex_);
    with_hello_.emplace(attempt, rank);
  }
  return rows.Meta(NameOf(attempt, rank));
}

std::unique_ptr<StreamWriter> ClickHouseAppender::NewWriter(AttemptId attempt, std::uint32_t rank) {
  // No block is an alias of another run's: each run's partition stands alone, and is dropped alone.
  return std::make_unique<BatchEncoder>(
      attempt, rank, StatEncoder::Options{.find_twin = {}, .key_frame_bytes = &key_frame_bytes_});
}

Status ClickHouseAppender::Append(std::span<const AppendItem> items) {
  {
    MutexLock lock(mutex_);
    if (!failure_.ok()) return failure_;
  }
  const Status appended = AppendItems(items);
  ReportOutcome(appended);
  if (appended.ok()) return appended;
  // Some of it may be stored, or may be stored later. A new claim of each rank settles which.
  for (const AppendItem& item : items) claims_.Forget({item.attempt, item.rank});
  MutexLock lock(mutex_);
  for (const AppendItem& item : items) with_hello_.erase({item.attempt, item.rank});
  failure_ =
      appended.code() == Code::kUnavailable ? Status(Code::kAborted, appended.message()) : appended;
  return failure_;
}

void ClickHouseAppender::ReportOutcome(const Status& appended) {
  if (appended.ok() && reported_.empty()) return;
  if (appended.ok())
    engine_.Log("store records: it succeeds again");
  else if (appended.message() != reported_)
    engine_.Log(appended.message() + "; agents keep their records and send them again");
  reported_ = appended.ok() ? "" : appended.message();
}

Status ClickHouseAppender::AppendItems(std::span<const AppendItem> items) {
  std::map<AttemptId, Piece> pieces;
  std::set<Claims::Place> places;
  for (const AppendItem& item : items) {
    Piece& piece = pieces[item.attempt];
    STATCOLLECT_RETURN_IF_ERROR(AddBatch(item, &piece));
    places.emplace(item.attempt, item.rank);
    if (piece.count >= kInsertRowsMax / 4 || piece.rows.bytes().size() >= kInsertBytesMax)
      STATCOLLECT_RETURN_IF_ERROR(Write(&piece));
  }
  for (auto& [attempt, piece] : pieces) STATCOLLECT_RETURN_IF_ERROR(Write(&piece));
  STATCOLLECT_RETURN_IF_ERROR(claims_.Check(places));
  MutexLock lock(mutex_);
  with_hello_.insert(places.begin(), places.end());
  return Status::Ok();
}

Status ClickHouseAppender::Write(Piece* piece) {
  if (piece->count == 0) return Status::Ok();
  const Piece whole = std::exchange(*piece, {});
  return engine_.Insert("store records", RecordsInto(engine_), whole.rows.bytes(), whole.token);
}

Status ClickHouseAppender::AddBatch(const AppendItem& item, Piece* piece) {
  STATCOLLECT_ASSIGN_OR_RETURN(
      const auto stamp, claims_.NextStamp({item.attempt, item.rank}, item.meta->durable_seq));
  if (item.prepared != nullptr) {
    const EncodedBatch& batch = EncodedOf(*item.prepared);
    for (const EncodedRow& row : batch.rows)
      AddRecordRow(item.attempt, item.rank,
                   {.family = row.family, .step = row.step, .item = row.item, .value = row.value},
                   stamp, &piece->rows);
    for (const EncodedStatBlock& block : batch.blocks)
      AddBlockRows(item, block, stamp, &piece->rows);
    piece->count += batch.rows.size() + 2 * batch.blocks.size();
  }
  STATCOLLECT_RETURN_IF_ERROR(AddHello(item, stamp, piece));
  AddRecordRow(item.attempt, item.rank, {.family = RowFamily::kRank, .value = Encode(*item.meta)},
               stamp, &piece->rows);
  piece->count += 2;
  piece->token += (piece->token.empty() ? "" : "+") + TokenOf(item, stamp);
  return Status::Ok();
}

// The content of a hello is large and does not change, so it is written once and not with each
// append.
Status ClickHouseAppender::AddHello(const AppendItem& item, const RowStamp& stamp, Piece* piece) {
  {
    MutexLock lock(mutex_);
    if (!with_hello_.emplace(item.attempt, item.rank).second) return Status::Ok();
  }
  STATCOLLECT_ASSIGN_OR_RETURN(
      const auto answer,
      engine_.Select("read the hello of rank " + std::to_string(item.rank),
                     "SELECT count() AS hellos FROM " + TableName(engine_, "records") + " WHERE " +
                         SqlPlace(item.attempt, RowFamily::kHello, item.rank)));
  ByteReader in(answer);
  const bool stored = in.U64() > 0;
  if (!in.done()) return BadAnswer(engine_, "read the hello of rank " + std::to_string(item.rank));
  if (!stored)
    AddRecordRow(item.attempt, item.rank,
                 {.family = RowFamily::kHello, .value = Encode(item.meta->info)}, stamp,
                 &piece->rows);
  return Status::Ok();
}

Status ClickHouseAppender::PutRank(AttemptId attempt, std::uint32_t rank, const RankMeta& meta) {
  const Claims::Place place(attempt, rank);
  STATCOLLECT_ASSIGN_OR_RETURN(const auto stamp, claims_.NextStamp(place, meta.durable_seq));
  ByteWriter rows;
  AddRecordRow(attempt, rank, {.family = RowFamily::kHello, .value = Encode(meta.info)}, stamp,
               &rows);
  AddRecordRow(attempt, rank, {.family = RowFamily::kRank, .value = Encode(meta)}, stamp, &rows);
  const Status written = writes_.Write(attempt, "write rank " + std::to_string(rank), rows.bytes(),
                                       TokenOf({.attempt = attempt, .rank = rank}, stamp));
  if (!written.ok()) {
    claims_.Forget(place);
    return written;
  }
  MutexLock lock(mutex_);
  with_hello_.insert(place);
  return Status::Ok();
}

Status ClickHouseAppender::PutEvents(AttemptId attempt, std::span<const CollectorEvent> events) {
  // A later call replaces an event of the same number; in this process always, and between
  // collectors by their clocks.
  const auto now = std::chrono::duration_cast<std::chrono::nanoseconds>(
      std::chrono::system_clock::now().time_since_epoch());
  std::uint64_t before = own_events_.load();
  std::uint64_t n = 0;
  do {
    n = std::max(before + 1, static_cast<std::uint64_t>(now.count()));
  } while (!own_events_.compare_exchange_weak(before, n));
  ByteWriter rows;
  for (const CollectorEvent& own : events) {
    AddRecordRow(attempt, own.rank,
                 {.family = RowFamily::kEvent,
                  .step = own.event.step,
                  .item = kOwnEvents | own.number,
                  .value = Encode(own.event)},
                 {.epoch = 0, .n = n}, &rows);
  }
  return engine_.Insert("add " + std::to_string(events.size()) + " events", RecordsInto(engine_),
                        rows.bytes(),
                        "events-" + std::to_string(attempt) + "-" + std::to_string(n));
}

Status ClickHouseAppender::Recover() {
  {
    MutexLock lock(mutex_);
    if (failure_.ok()) return failure_;
  }
  // An engine that is full, or short of replicas, still answers a question.
  const Status probed = ProbeWrite(engine_, "store records");
  MutexLock lock(mutex_);
  if (probed.ok())
    failure_ = Status::Ok();
  else if (!failure_.ok())
    failure_ =
        probed.code() == Code::kUnavailable ? Status(Code::kAborted, probed.message()) : probed;
  return failure_;
}

}  // namespace statcollect
