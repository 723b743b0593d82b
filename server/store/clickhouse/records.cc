#include "server/store/clickhouse/records.h"

#include <algorithm>
#include <optional>
#include <string_view>
#include <variant>

#include "common/parse.h"
#include "server/store/clickhouse/chain.h"
#include "server/store/codec/batch_encoder.h"
#include "server/store/codec/sealed.h"
#include "server/store/tally.h"

namespace statcollect {
namespace {

std::string ActiveParts(const Engine& engine) {
  return " FROM system.parts WHERE active AND database = " + SqlText(engine.dsn().database);
}

// Bytes of each attempt, by partition.
Status AddPartSizes(Engine& engine, std::vector<AttemptTally>* tallies) {
  const std::string query = "SELECT partition, sum(bytes_on_disk) AS bytes" + ActiveParts(engine) +
                            " AND table = 'records' GROUP BY partition";
  return SelectRows(engine, "measure attempts", query, [&](ByteReader& in) {
    const auto id = ParseNumber<AttemptId>(in.Text());
    const std::uint64_t bytes = in.U64();
    const auto of = std::find_if(tallies->begin(), tallies->end(),
                                 [&](const AttemptTally& t) { return id == t.meta.id; });
    if (of != tallies->end()) of->bytes += bytes;
  });
}

// What is not in a value.
template <typename T>
void AddFromRow(const StoredRow&, T*) {}
void AddFromRow(const StoredRow& row, EventRecord* event) {
  event->from_collector = row.epoch == 0;
}

template <typename T>
Status VisitKind(Engine& engine, AttemptTable& attempts, PageRange range,
                 const Visitor<T>& visitor) {
  range.family = kKindOf<T>.family;
  return VisitRows(engine, attempts, kKindOf<T>.name, range, visitor,
                   [](const StoredRow& row, T* record) { AddFromRow(row, record); });
}

Status VisitKind(Engine& engine, AttemptTable& attempts, PageRange range,
                 const Visitor<StoredCapture>& visitor) {
  range.family = RowFamily::kCaptureHead;
  std::optional<StoredCapture> capture;  // whose chunks are being read
  StoredRow place;
  Visitor<CaptureHead> chunks;
  chunks.read = visitor.read;
  chunks.take = [&](const CaptureHead& head) {
    const auto activation = static_cast<std::uint32_t>(place.item >> 32);
    const auto offset = static_cast<std::uint32_t>(place.item);
    if (!capture || capture->step != place.step || capture->activation != activation) {
      if (capture) STATCOLLECT_RETURN_IF_ERROR(visitor.take(*capture));
      capture = {.step = place.step,
                 .activation = activation,
                 .layout = head.layout,
                 .elements = head.elements};
    }
    if (capture->bytes_stored == offset) capture->bytes_stored += head.bytes;
    return Status::Ok();
  };
  STATCOLLECT_RETURN_IF_ERROR(VisitRows(engine, attempts, "captures", range, chunks,
                                        [&](const StoredRow& row, CaptureHead*) { place = row; }));
  return capture ? visitor.take(*capture) : Status::Ok();
}

}  // namespace

Result<std::vector<AttemptTally>> EmptyTallies(AttemptTable& attempts) {
  STATCOLLECT_ASSIGN_OR_RETURN(auto live, attempts.Live());
  STATCOLLECT_ASSIGN_OR_RETURN(const auto kept, attempts.KeptRuns());
  std::vector<AttemptTally> tallies;
  for (AttemptMeta& attempt : live) {
    tallies.push_back(EmptyTally(std::move(attempt)));
    tallies.back().kept = kept.contains(tallies.back().meta.run);
  }
  return tallies;
}

Status AddRanks(Engine& engine, std::vector<AttemptTally>* tallies) {
  std::map<AttemptId, std::size_t> places;
  for (std::size_t i = 0; i < tallies->size(); ++i) places[(*tallies)[i].meta.id] = i;
  STATCOLLECT_ASSIGN_OR_RETURN(
      const auto answer,
      engine.Select(
          "read the ranks",
          "SELECT attempt, rank, value FROM " + TableName(engine, "records") +
              " WHERE family = " + SqlOf(RowFamily::kRank) +
              " AND n > 0 ORDER BY attempt, rank, epoch DESC, n DESC LIMIT 1 BY attempt, rank"));
  ByteReader in(answer);
  while (in.ok() && in.remaining() > 0) {
    const auto place = places.find(in.U32());
    const std::uint32_t rank = in.U32();
    const std::string_view value = in.Raw(in.Varint());
    if (!in.ok() || place == places.end()) continue;
    STATCOLLECT_ASSIGN_OR_RETURN(const auto meta,
                                 Decode<RankMeta>("rank " + std::to_string(rank), value));
    AddRank(meta, &(*tallies)[place->second]);
  }
  if (!in.ok()) return BadAnswer(engine, "read the ranks");
  return AddPartSizes(engine, tallies);
}

Status VisitRecords(Engine& engine, AttemptTable& attempts, AttemptId attempt, std::uint32_t rank,
                    StepBounds steps, RecordVisitor visitor) {
  const PageRange range{.attempt = attempt, .rank = rank, .steps = steps};
  return std::visit([&](const auto* of) { return VisitKind(engine, attempts, range, *of); },
                    visitor);
}

Result<std::string> ReadChunk(Engine& engine, AttemptId attempt, std::uint32_t rank,
                              std::uint64_t step, std::uint32_t activation, std::uint32_t offset) {
  const std::string what = "capture of attempt " + std::to_string(attempt) + ", rank " +
                           std::to_string(rank) + ", step " + std::to_string(step) +
                           ", activation " + std::to_string(activation) + ", byte " +
                           std::to_string(offset);
  STATCOLLECT_ASSIGN_OR_RETURN(
      const auto answer,
      engine.Select("read " + what,
                    "SELECT epoch, seq, value FROM " + TableName(engine, "records") + " WHERE " +
                        SqlPlace(attempt, RowFamily::kCaptureData, rank) +
                        " AND step = " + std::to_string(step) +
                        " AND item = " + std::to_string(std::uint64_t{activation} << 32 | offset) +
                        " ORDER BY epoch, n"));
  STATCOLLECT_ASSIGN_OR_RETURN(const auto chain, ReadChain(engine, attempt, rank));
  std::optional<std::string_view> sealed;
  STATCOLLECT_RETURN_IF_ERROR(ForEachRow(engine, "read " + what, answer, [&](ByteReader& in) {
    const std::uint64_t epoch = in.U64(), seq = in.U64();
    const std::string_view value = in.Raw(in.Varint());
    if (chain.Counts(epoch, seq)) sealed = value;
  }));
  if (!sealed) return Status(Code::kNotFound, "read " + what + ": it is not stored");
  STATCOLLECT_ASSIGN_OR_RETURN(const auto payload, Unseal(what, *sealed, kCaptureDataVersion));
  return std::string(payload);
}

Result<std::optional<std::int64_t>> ReadClock(Engine& engine) {
  std::uint64_t seconds = 0;
  STATCOLLECT_RETURN_IF_ERROR(SelectOne(engine, "read the clock",
                                        "SELECT toUInt64(now()) AS seconds",
                                        [&](ByteReader& in) { seconds = in.U64(); }));
  // Releases before 22 have whole seconds only: on average half of one has passed.
  return std::optional(static_cast<std::int64_t>(seconds) * 1'000'000'000 + 500'000'000);
}

Result<StoreUsage> ReadUsage(Engine& engine, AttemptTable& attempts) {
  StoreUsage usage;
  STATCOLLECT_RETURN_IF_ERROR(SelectOne(engine, "measure the store",
                                        "SELECT sum(bytes_on_disk) AS bytes" + ActiveParts(engine),
                                        [&](ByteReader& in) { usage.disk_bytes = in.U64(); }));
  usage.disk_known = engine.is_modern();
  if (usage.disk_known) {
    STATCOLLECT_RETURN_IF_ERROR(SelectOne(
        engine, "measure the disks", "SELECT sum(free_space), sum(total_space) FROM system.disks",
        [&](ByteReader& in) {
          usage.disk_free_bytes = in.U64();
          usage.disk_capacity_bytes = in.U64();
        }));
  }
  STATCOLLECT_ASSIGN_OR_RETURN(const auto rows, attempts.Rows());
  usage.retired_attempts =
      static_cast<std::uint64_t>(std::count_if(rows.begin(), rows.end(), [](const AttemptRow& row) {
        return row.state == AttemptState::kRetired;
      }));
  return usage;
}

}  // namespace statcollect
