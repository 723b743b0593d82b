#include "server/store/clickhouse/pages.h"

#include <algorithm>
#include <utility>

namespace statcollect {

RowPages::RowPages(Engine& engine, AttemptTable& attempts, std::string what, const PageRange& range,
                   bool with_values, std::size_t page_rows)
    : engine_(engine),
      attempts_(attempts),
      what_(std::move(what)),
      range_(range),
      with_values_(with_values),
      page_rows_max_(16 * page_rows),
      page_rows_(page_rows),
      from_step_(range.steps.first),
      from_item_(range.first_item) {}

std::string RowPages::Query() const {
  std::string query = "SELECT step, item, epoch, seq, records, digest, " +
                      std::string(with_values_ ? "value" : "''") + " AS content FROM " +
                      TableName(engine_, "records") + " WHERE " +
                      SqlPlace(range_.attempt, range_.family, range_.rank) +
                      SqlSteps({.first = from_step_, .last = range_.steps.last});
  if (range_.first_item > 0 || range_.last_item < ~std::uint64_t{0}) {
    query += " AND item >= " + std::to_string(range_.first_item) +
             " AND item <= " + std::to_string(range_.last_item);
  }
  if (pages_ > 0)
    query += " AND (step > " + std::to_string(from_step_) +
             " OR item >= " + std::to_string(from_item_) + ")";
  return query + " ORDER BY step, item, epoch, n LIMIT " + std::to_string(page_rows_);
}

Result<bool> RowPages::Next() {
  rows_.clear();
  while (!at_end_ && rows_.empty()) STATCOLLECT_RETURN_IF_ERROR(Read());
  if (!rows_.empty()) return true;
  if (pages_ > 1)
    STATCOLLECT_RETURN_IF_ERROR(attempts_.CheckStillThere("read " + what_, range_.attempt));
  return false;
}

Status RowPages::Read() {
  STATCOLLECT_ASSIGN_OR_RETURN(body_, engine_.Select("read " + what_, Query()));
  std::vector<StoredRow> found;
  const auto take = [&](ByteReader& in) {
    StoredRow row{.step = in.U64(),
                  .item = in.U64(),
                  .epoch = in.U64(),
                  .seq = in.U64(),
                  .records = in.U32()};
    row.digest = ReadDigest(in);
    row.value = in.Raw(in.Varint());
    found.push_back(row);
  };
  STATCOLLECT_RETURN_IF_ERROR(ForEachRow(engine_, "read " + what_, body_, take));
  at_end_ = found.size() < page_rows_;
  ++pages_;
  if (!at_end_) {
    // The last key may go on behind the page. A page of one key only has to grow.
    from_step_ = found.back().step;
    from_item_ = found.back().item;
    while (!found.empty() && found.back().step == from_step_ && found.back().item == from_item_)
      found.pop_back();
    page_rows_ = found.empty() ? 2 * page_rows_
                               : std::min(2 * page_rows_, std::max(page_rows_max_, page_rows_));
  }
  if (found.empty()) return Status::Ok();
  // After the rows, so that it knows the epochs of all of them.
  STATCOLLECT_ASSIGN_OR_RETURN(chain_, ReadChain(engine_, range_.attempt, range_.rank));
  for (const StoredRow& row : found) {
    if (!chain_.Counts(row.epoch, row.seq)) continue;
    const bool again =
        !rows_.empty() && rows_.back().step == row.step && rows_.back().item == row.item;
    if (again)
      rows_.back() = row;
    else
      rows_.push_back(row);
  }
  return Status::Ok();
}

}  // namespace statcollect
