// Predicts columns whose values nearly follow from the columns before them.
#ifndef STATCOLLECT_SERVER_STORE_CODEC_PREDICTIONS_H_
#define STATCOLLECT_SERVER_STORE_CODEC_PREDICTIONS_H_

#include <cstdint>
#include <span>

#include "server/store/codec/block_columns.h"

namespace statcollect {

constexpr bool IsPredicted(Column column) {
  return column == kPos || column == kL1 || column == kL2;
}

// Predictions must be identical on every machine: IEEE arithmetic in a fixed order (predictions.cc
// is compiled without contraction of a * b + c), and 0 instead of NaN.

// Predicts `column` for the records of `block` at `indexes`, or for all records if `indexes` is
// empty. The columns before `column` are already filled in. `key_frame` may be null.
void PredictColumn(Column column, const BlockColumns& block, const BlockColumns* key_frame,
                   std::span<const std::uint16_t> indexes, std::span<std::uint64_t> predictions);

// Predicts `column` of one record whose earlier columns are filled in. `key`: its counterpart in
// the key frame, or null.
std::uint64_t PredictOne(Column column, const ColumnRecord& record, const ColumnRecord* key);

}  // namespace statcollect

#endif  // STATCOLLECT_SERVER_STORE_CODEC_PREDICTIONS_H_
