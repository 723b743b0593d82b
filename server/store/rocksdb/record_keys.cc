#include "server/store/rocksdb/record_keys.h"

#include <cstdlib>
#include <string>
#include <utility>

#include "server/store/key.h"
#include "server/store/rocksdb/catalogue_keys.h"

namespace statcollect {
namespace {

struct Place {
  Family family;
  char part = 0;  // CaptureKey::part; 0: it lies in another family
};

Place PlaceOf(RowFamily row) {
  switch (row) {
    case RowFamily::kActivation:
    case RowFamily::kLayout:
    case RowFamily::kSetting:
      return {kCatalogue};
    case RowFamily::kScalar:
      return {kScalars};
    case RowFamily::kEvent:
      return {kEvents};
    case RowFamily::kMemory:
      return {kMemory};
    case RowFamily::kDensity:
      return {kDensities};
    case RowFamily::kStepEnd:
      return {kSteps};
    case RowFamily::kCaptureData:
      return {kCaptures, 'd'};
    case RowFamily::kCaptureHead:
      return {kCaptures, 'h'};
    case RowFamily::kExponent:
      return {kCaptures, 'e'};
    case RowFamily::kTokens:
      return {kCaptures, 't'};
    case RowFamily::kBlock:
    case RowFamily::kSums:
    case RowFamily::kHello:
    case RowFamily::kRank:
    case RowFamily::kRemoved:
      break;
  }
  std::abort();  // written without an EncodedRow
}

KeyRange CaptureRange(AttemptId attempt, std::uint32_t rank, char part, StepBounds steps) {
  const auto at = [&](std::uint64_t step) {
    return KeyBuilder().U32(attempt).U32(rank).Text({&part, 1}).U64(step).Take();
  };
  const std::string all = KeyBuilder().U32(attempt).U32(rank).Text({&part, 1}).Take();
  return KeyRange(at(steps.first),
                  steps.last == ~std::uint64_t{0} ? PrefixEnd(all) : at(steps.last + 1));
}

}  // namespace

Family FamilyOf(RowFamily row) { return PlaceOf(row).family; }

std::string KeyOf(AttemptId attempt, std::uint32_t rank, const EncodedRow& row) {
  const auto [family, part] = PlaceOf(row.family);
  if (part != 0) {
    const std::uint64_t item = row.family == RowFamily::kExponent ? row.item << 32 : row.item;
    return EncodeCaptureKey({.attempt = attempt,
                             .rank = rank,
                             .part = part,
                             .step = row.step,
                             .activation = static_cast<std::uint32_t>(item >> 32),
                             .offset = static_cast<std::uint32_t>(item)});
  }
  if (family == kCatalogue) {
    const std::string of_rank = RankKey(static_cast<char>(row.family), attempt, rank);
    return of_rank + (row.family == RowFamily::kSetting
                          ? row.name
                          : KeyBuilder().U32(static_cast<std::uint32_t>(row.item)).Take());
  }
  const std::string of_step = StepPrefix(attempt, rank, row.step);
  return family == kSteps ? of_step : of_step + KeyBuilder().U64(row.item).Take();
}

KeyRange RangeOf(RowFamily row, AttemptId attempt, std::uint32_t rank, StepBounds steps) {
  const char part = PlaceOf(row).part;
  return part == 0 ? RankRange(attempt, rank, steps) : CaptureRange(attempt, rank, part, steps);
}

}  // namespace statcollect
