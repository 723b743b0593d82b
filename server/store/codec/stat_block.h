// Stored form of a block of statistics: records of one step, column by column. Layout:
// docs/storage-format.md.
#ifndef STATCOLLECT_SERVER_STORE_CODEC_STAT_BLOCK_H_
#define STATCOLLECT_SERVER_STORE_CODEC_STAT_BLOCK_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "common/records.h"
#include "common/status.h"

namespace statcollect {

inline constexpr std::uint8_t kStatBlockVersion = 1;
inline constexpr std::size_t kBlockRecordsMax = 1000;

// Records [first, first + count) of `columns`, all of one step (which is part of the key, not of the block).
// Precondition: 1 <= count <= kBlockRecordsMax.
std::string EncodeStatBlock(const StatColumns& columns, std::size_t first, std::size_t count);

// Never trusts a length; `step` is written into the columns. kDataLoss, kFailedPrecondition as Unseal.
Result<StatColumns> DecodeStatBlock(std::string_view what, std::string_view bytes, std::uint64_t step);

}  // namespace statcollect

#endif  // STATCOLLECT_SERVER_STORE_CODEC_STAT_BLOCK_H_
