// The kinds of rows that a rank has in a store, and which of them each kind of record becomes.
#ifndef STATCOLLECT_SERVER_STORE_CODEC_RECORD_KINDS_H_
#define STATCOLLECT_SERVER_STORE_CODEC_RECORD_KINDS_H_

#include <cstdint>

#include "common/records.h"

namespace statcollect {

// ClickHouse stores the letters. RocksDB has families and keys of its own (rocksdb/record_keys.h).
enum class RowFamily : std::uint8_t {
  kActivation = 'a',
  kBlock = 'b',  // statistics
  kSetting = 'c',
  kDensity = 'd',
  kEvent = 'e',
  kCaptureData = 'f',
  kCaptureHead = 'h',
  kHello = 'i',
  kLayout = 'l',
  kRank = 'm',  // watermark and tallies
  kMemory = 'o',
  kRemoved = 'r',  // keeps a partition; see AttemptTable::DropData
  kSums = 's',     // sketches and samples of a block
  kTokens = 't',
  kScalar = 'v',
  kStepEnd = 'w',
  kExponent = 'x',
};

struct RecordKind {
  RowFamily family;
  const char* name;  // in messages and digests
};
// Of each record that becomes one row and is read as it was written: not of statistics, settings
// and captures.
template <typename Record>
inline constexpr RecordKind kKindOf = Record::kHasNoKind;
template <>
inline constexpr RecordKind kKindOf<ScalarRecord>{RowFamily::kScalar, "scalars"};
template <>
inline constexpr RecordKind kKindOf<EventRecord>{RowFamily::kEvent, "events"};
template <>
inline constexpr RecordKind kKindOf<MemoryRecord>{RowFamily::kMemory, "memory"};
template <>
inline constexpr RecordKind kKindOf<DensityRecord>{RowFamily::kDensity, "densities"};
template <>
inline constexpr RecordKind kKindOf<StepRecord>{RowFamily::kStepEnd, "steps"};
template <>
inline constexpr RecordKind kKindOf<ExponentRecord>{RowFamily::kExponent, "exponents"};
template <>
inline constexpr RecordKind kKindOf<TokenRecord>{RowFamily::kTokens, "tokens"};

}  // namespace statcollect

#endif  // STATCOLLECT_SERVER_STORE_CODEC_RECORD_KINDS_H_
