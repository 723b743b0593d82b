#include "proto/convert/tokens.h"

#include <algorithm>
#include <string>

#include "common/names.h"
#include "proto/convert/checks.h"

namespace statcollect::convert {
namespace {

Status CheckRows(const v1::TokenRows& wire, std::size_t index) {
  if (!InRange(wire.dtype(), kDTypeCount)) {
    return InvalidValue("tokens", index, "of dtype " + std::to_string(wire.dtype()),
                        "1.." + std::to_string(kDTypeCount - 1));
  }
  const int rows = wire.key_size();
  if (rows == 0 || rows > static_cast<int>(kTokenRowsMax) || wire.position_size() != rows ||
      wire.l2_size() != rows || wire.hash_size() != rows ||
      wire.sketch_size() != rows * static_cast<int>(kRowSketch)) {
    return InvalidValue("tokens", index,
                        "of " + std::to_string(rows) + " keys, " +
                            std::to_string(wire.position_size()) + " positions, " +
                            std::to_string(wire.l2_size()) + " norms, " +
                            std::to_string(wire.hash_size()) + " hashes and " +
                            std::to_string(wire.sketch_size()) + " sums",
                        "as many of each, 1.." + std::to_string(kTokenRowsMax) + ", and " +
                            std::to_string(kRowSketch) + " sums a row");
  }
  return Status::Ok();
}

}  // namespace

void TokensToWire(const RecordBatch& batch, v1::Records* wire) {
  for (const TokenRecord& record : batch.tokens) {
    v1::TokenRows* to = wire->add_tokens();
    to->set_step(record.step);
    to->set_tap(record.tap);
    to->set_call(record.call);
    to->set_dtype(static_cast<v1::DType>(record.dtype));
    to->set_columns(record.columns);
    to->set_first_column(record.first_column);
    for (const TokenRow& row : record.rows) {
      to->add_key(row.key);
      to->add_position(row.position);
      to->add_l2(row.stats.l2);
      to->add_hash(row.stats.hash);
      to->mutable_sketch()->Add(row.stats.sketch.begin(), row.stats.sketch.end());
    }
  }
}

Status TokensFromWire(const v1::Records& wire, RecordBatch* batch) {
  for (int i = 0; i < wire.tokens_size(); ++i) {
    const v1::TokenRows& from = wire.tokens(i);
    const auto index = static_cast<std::size_t>(i);
    STATCOLLECT_RETURN_IF_ERROR(
        Within("batch: " + At("tokens", index), ValidateTensorName("tap", from.tap())));
    STATCOLLECT_RETURN_IF_ERROR(CheckRows(from, index));
    TokenRecord& record = batch->tokens.emplace_back();
    record.step = from.step();
    record.tap = from.tap();
    record.call = from.call();
    record.dtype = static_cast<DType>(from.dtype());
    record.columns = from.columns();
    record.first_column = from.first_column();
    record.rows.resize(static_cast<std::size_t>(from.key_size()));
    for (int r = 0; r < from.key_size(); ++r) {
      TokenRow& row = record.rows[static_cast<std::size_t>(r)];
      row.key = from.key(r);
      row.position = from.position(r);
      row.stats.l2 = from.l2(r);
      row.stats.hash = from.hash(r);
      const float* sketch = from.sketch().data() + r * static_cast<int>(kRowSketch);
      std::copy(sketch, sketch + kRowSketch, row.stats.sketch.begin());
    }
  }
  return Status::Ok();
}

}  // namespace statcollect::convert
