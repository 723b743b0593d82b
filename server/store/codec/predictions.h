// Columns that follow from those before them, nearly: what a record's number is expected to be.
#ifndef STATCOLLECT_SERVER_STORE_CODEC_PREDICTIONS_H_
#define STATCOLLECT_SERVER_STORE_CODEC_PREDICTIONS_H_

#include <cstdint>
#include <span>

#include "server/store/codec/block_columns.h"

namespace statcollect {

constexpr bool IsPredicted(Column column) { return column == kPos || column == kL1 || column == kL2; }

// A prediction must come out the same wherever it is made: IEEE arithmetic in a fixed order (predictions.cc is
// compiled without contraction of a * b + c), and 0 for what is not a number.

// Of the records of `block` at `indexes`, one after another; of all of them if `indexes` is empty. The columns
// before `column` have their values. `key_frame`: null if there is none.
void PredictColumn(Column column, const BlockColumns& block, const BlockColumns* key_frame,
                   std::span<const std::uint16_t> indexes, std::span<std::uint64_t> predictions);

// Of one record, whose columns before `column` have their values. `key`: its counterpart in the key frame, or
// null.
std::uint64_t PredictOne(Column column, const ColumnRecord& record, const ColumnRecord* key);

}  // namespace statcollect

#endif  // STATCOLLECT_SERVER_STORE_CODEC_PREDICTIONS_H_
