// The storage modes of a block's columns, shared by its writer and its reader.
#ifndef STATCOLLECT_SERVER_STORE_CODEC_STORED_NUMBERS_H_
#define STATCOLLECT_SERVER_STORE_CODEC_STORED_NUMBERS_H_

#include <array>
#include <cstdint>

#include "server/store/codec/block_columns.h"

namespace statcollect {

using BlockNumbers = std::array<std::uint64_t, kBlockRecordsMax>;

// How a column's values are encoded.
enum StoredMode : std::uint8_t {
  kPlain = 0,
  kNeighbour = 1,    // zigzag difference to the previous record, or to 0 for the first
  kKeyFrame = 2,     // zigzag difference to the key frame's record
  kExclusiveOr = 3,  // exclusive or with the key frame's record
  kPredicted = 4,    // zigzag difference to the prediction from earlier columns
  kStoredModes
};

// Integers that may be predicted by their neighbour.
constexpr bool RunsAlong(Column column) {
  return column <= kOrder || column == kNumel || column == kSamples;
}
constexpr bool IsReal(Column column) { return column >= kMean && column <= kMax; }
inline constexpr std::uint64_t kNoLimit = ~std::uint64_t{0};
constexpr std::uint64_t LimitOf(Column column) {
  return column <= kOrder || column == kSamples ? 0xffffffffu : kNoLimit;
}

constexpr std::uint64_t ZigZag(std::uint64_t difference) {
  return (difference << 1) ^ (~(difference >> 63) + 1);
}
constexpr std::uint64_t UnZigZag(std::uint64_t code) { return (code >> 1) ^ (~(code & 1) + 1); }

}  // namespace statcollect

#endif  // STATCOLLECT_SERVER_STORE_CODEC_STORED_NUMBERS_H_
