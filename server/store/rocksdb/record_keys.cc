#include "server/store/rocksdb/record_keys.h"

#include <cstdlib>
#include <string>
#include <utility>

#include "server/store/key.h"

namespace statcollect {
namespace {

// CaptureKey::part of what lies in the family of captures; 0: it lies elsewhere.
char PartOf(RowFamily row) {
  switch (row) {
    case RowFamily::kCaptureHead:
      return 'h';
    case RowFamily::kCaptureData:
      return 'd';
    case RowFamily::kExponent:
      return 'e';
    case RowFamily::kTokens:
      return 't';
    default:
      return 0;
  }
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

Family FamilyOf(RowFamily row) {
  switch (row) {
    case RowFamily::kActivation:
    case RowFamily::kLayout:
    case RowFamily::kSetting:
    case RowFamily::kHello:
    case RowFamily::kRank:
    case RowFamily::kRemoved:
      return kCatalogue;
    case RowFamily::kBlock:
      return kStats;
    case RowFamily::kSums:
      return kSketches;
    case RowFamily::kScalar:
      return kScalars;
    case RowFamily::kEvent:
      return kEvents;
    case RowFamily::kMemory:
      return kMemory;
    case RowFamily::kDensity:
      return kDensities;
    case RowFamily::kStepEnd:
      return kSteps;
    case RowFamily::kCaptureData:
    case RowFamily::kCaptureHead:
    case RowFamily::kExponent:
    case RowFamily::kTokens:
      return kCaptures;
  }
  std::abort();  // no such row
}

KeyRange RangeOf(RowFamily row, AttemptId attempt, std::uint32_t rank, StepBounds steps) {
  const char part = PartOf(row);
  return part == 0 ? RankRange(attempt, rank, steps) : CaptureRange(attempt, rank, part, steps);
}

}  // namespace statcollect
