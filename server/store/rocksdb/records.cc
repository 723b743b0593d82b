#include "server/store/rocksdb/records.h"

#include <cstddef>
#include <utility>

#include "server/store/codec/catalogue.h"
#include "server/store/codec/sealed.h"
#include "server/store/key.h"
#include "server/store/rocksdb/catalogue_keys.h"
#include "server/store/rocksdb/families.h"
#include "server/store/rocksdb/stream_writer.h"
#include "server/store/rocksdb/util.h"
#include "server/store/rocksdb/values.h"

namespace statcollect {
namespace {

constexpr std::size_t kEventKeyBytes = 24;

}  // namespace

Result<std::vector<std::uint64_t>> ReadStatSteps(const Database& database, AttemptId attempt,
                                                 std::uint32_t rank, StepBounds bounds) {
  std::vector<std::uint64_t> steps;
  const KeyRange range = RankRange(attempt, rank, bounds);
  auto it = Iterate(*database.db, database.families[kStats], range);
  while (it->Valid()) {
    const auto key = DecodeStatKey(View(it->key()));
    if (!key) return Status(Code::kDataLoss, "list steps: found a key of another length than 20 bytes");
    steps.push_back(key->step);
    if (key->step == ~std::uint64_t{0}) break;
    it->Seek(StepPrefix(attempt, rank, key->step + 1));
  }
  STATCOLLECT_RETURN_IF_ERROR(FromRocks("list steps", it->status()));
  return steps;
}

Result<std::vector<EventRecord>> ReadEvents(const Database& database, AttemptId attempt, std::uint32_t rank) {
  std::vector<EventRecord> events;
  STATCOLLECT_RETURN_IF_ERROR(ForEachValue<EventRecord>(
      database, "events" + OfRank(attempt, rank), kEvents, RankRange(attempt, rank, {}),
      [&](std::string_view key, EventRecord event) {
        event.from_collector = key.size() == kEventKeyBytes && ReadU64(key.substr(16)) >= kCollectorsOwn;
        events.push_back(std::move(event));
      }));
  return events;
}

Result<std::vector<StoredCapture>> ReadCaptures(const Database& database, AttemptId attempt,
                                                std::uint32_t rank, StepBounds steps) {
  std::vector<StoredCapture> captures;
  Status malformed;
  STATCOLLECT_RETURN_IF_ERROR(ForEachValue<CaptureHead>(
      database, "captures" + OfRank(attempt, rank), kCaptures, CaptureRange(attempt, rank, 'h', steps),
      [&](std::string_view text, const CaptureHead& head) {
        const auto key = DecodeCaptureKey(text);
        if (!key) {
          malformed = {Code::kDataLoss, "list captures: found a key of another form"};
          return;
        }
        if (captures.empty() || captures.back().step != key->step ||
            captures.back().activation != key->activation) {
          captures.push_back({.step = key->step,
                              .activation = key->activation,
                              .layout = head.layout,
                              .elements = head.elements});
        }
        if (captures.back().bytes_stored == key->offset) captures.back().bytes_stored += head.bytes;
      }));
  if (!malformed.ok()) return malformed;
  return captures;
}

Result<std::string> ReadCaptureChunk(const Database& database, AttemptId attempt, std::uint32_t rank,
                                     std::uint64_t step, std::uint32_t activation, std::uint32_t offset) {
  const std::string what = "capture" + OfRank(attempt, rank) + ", step " + std::to_string(step) +
                           ", activation " + std::to_string(activation) + ", byte " + std::to_string(offset);
  const CaptureKey key{.attempt = attempt,
                       .rank = rank,
                       .part = 'd',
                       .step = step,
                       .activation = activation,
                       .offset = offset};
  std::string sealed;
  const rocksdb::Status read =
      database.db->Get({}, database.families[kCaptures], EncodeCaptureKey(key), &sealed);
  if (read.IsNotFound()) return Status(Code::kNotFound, "read " + what + ": it is not stored");
  STATCOLLECT_RETURN_IF_ERROR(FromRocks("read " + what, read));
  const auto payload = Unseal(what, sealed, kCaptureDataVersion);
  if (!payload.ok()) return payload.status();
  return std::string(*payload);
}

}  // namespace statcollect
