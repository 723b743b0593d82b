#include "server/store/rocksdb/records.h"

#include <cstddef>
#include <optional>
#include <utility>
#include <variant>

#include "server/store/codec/catalogue.h"
#include "server/store/codec/sealed.h"
#include "server/store/key.h"
#include "server/store/rocksdb/catalogue_keys.h"
#include "server/store/rocksdb/families.h"
#include "server/store/rocksdb/record_keys.h"
#include "server/store/rocksdb/util.h"
#include "server/store/rocksdb/values.h"

namespace statcollect {
namespace {

constexpr std::size_t kEventKeyBytes = 24;

// What is not in a value.
template <typename T>
void AddFromKey(std::string_view, T*) {}
void AddFromKey(std::string_view key, EventRecord* event) {
  event->from_collector = key.size() == kEventKeyBytes && ReadU64(key.substr(16)) >= kCollectorsOwn;
}

template <typename T>
Status VisitKind(const Database& database, AttemptId attempt, std::uint32_t rank, StepBounds steps,
                 const Visitor<T>& visitor) {
  constexpr RecordKind kKind = kKindOf<T>;
  return VisitValues(database, kKind.name + OfRank(attempt, rank), FamilyOf(kKind.family),
                     RangeOf(kKind.family, attempt, rank, steps), visitor,
                     [](std::string_view key, T* record) { AddFromKey(key, record); });
}

Status VisitKind(const Database& database, AttemptId attempt, std::uint32_t rank, StepBounds steps,
                 const Visitor<StoredCapture>& visitor) {
  std::optional<StoredCapture> capture;  // whose chunks are being read
  std::optional<CaptureKey> place;
  Visitor<CaptureHead> chunks;
  chunks.read = visitor.read;
  chunks.take = [&](const CaptureHead& head) {
    if (!place) return Status(Code::kDataLoss, "list captures: found a key of another form");
    if (!capture || capture->step != place->step || capture->activation != place->activation) {
      if (capture) STATCOLLECT_RETURN_IF_ERROR(visitor.take(*capture));
      capture = {.step = place->step,
                 .activation = place->activation,
                 .layout = head.layout,
                 .elements = head.elements};
    }
    if (capture->bytes_stored == place->offset) capture->bytes_stored += head.bytes;
    return Status::Ok();
  };
  STATCOLLECT_RETURN_IF_ERROR(
      VisitValues(database, "captures" + OfRank(attempt, rank), kCaptures,
                  RangeOf(RowFamily::kCaptureHead, attempt, rank, steps), chunks,
                  [&](std::string_view key, CaptureHead*) { place = DecodeCaptureKey(key); }));
  return capture ? visitor.take(*capture) : Status::Ok();
}

}  // namespace

Status VisitStatSteps(const Database& database, AttemptId attempt, std::uint32_t rank,
                      StepBounds bounds, const Visitor<std::uint64_t>& visitor) {
  const KeyRange range = RankRange(attempt, rank, bounds);
  auto it = Iterate(*database.db, database.families[kStats], range);
  while (it->Valid()) {
    if (database.closing) return ReadInterrupted("steps");
    STATCOLLECT_RETURN_IF_ERROR(visitor.Read(it->key().size()));
    const auto key = DecodeStatKey(View(it->key()));
    if (!key)
      return Status(Code::kDataLoss, "list steps: found a key of another length than 20 bytes");
    STATCOLLECT_RETURN_IF_ERROR(visitor.take(key->step));
    if (key->step == ~std::uint64_t{0}) break;
    it->Seek(StepPrefix(attempt, rank, key->step + 1));
  }
  return FromRocks("list steps", it->status());
}

Status VisitRecords(const Database& database, AttemptId attempt, std::uint32_t rank,
                    StepBounds steps, RecordVisitor visitor) {
  return std::visit([&](const auto* of) { return VisitKind(database, attempt, rank, steps, *of); },
                    visitor);
}

Result<std::string> ReadCaptureChunk(const Database& database, AttemptId attempt,
                                     std::uint32_t rank, std::uint64_t step,
                                     std::uint32_t activation, std::uint32_t offset) {
  const std::string what = "capture" + OfRank(attempt, rank) + ", step " + std::to_string(step) +
                           ", activation " + std::to_string(activation) + ", byte " +
                           std::to_string(offset);
  const CaptureKey key{.attempt = attempt,
                       .rank = rank,
                       .part = 'd',
                       .step = step,
                       .activation = activation,
                       .offset = offset};
  STATCOLLECT_ASSIGN_OR_RETURN(const auto sealed,
                               ReadBytes(database, what, kCaptures, EncodeCaptureKey(key)));
  if (!sealed) return Status(Code::kNotFound, "read " + what + ": it is not stored");
  STATCOLLECT_ASSIGN_OR_RETURN(const auto payload, Unseal(what, *sealed, kCaptureDataVersion));
  return std::string(payload);
}

}  // namespace statcollect
