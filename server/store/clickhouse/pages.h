// Rows of `records` of one rank and family, page by page, in the order of their keys. Only the rows
// that count, one of each key (chain.h); so a repeated insert is never seen.
#ifndef STATCOLLECT_SERVER_STORE_CLICKHOUSE_PAGES_H_
#define STATCOLLECT_SERVER_STORE_CLICKHOUSE_PAGES_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/status.h"
#include "server/store/clickhouse/attempts.h"
#include "server/store/clickhouse/chain.h"
#include "server/store/clickhouse/schema.h"
#include "server/store/run_reader.h"

namespace statcollect {

struct StoredRow {
  std::uint64_t step = 0, item = 0, epoch = 0, seq = 0;
  std::uint32_t records = 0;
  BlockDigest digest{};
  std::string_view value;  // into the page
};

struct PageRange {
  AttemptId attempt = 0;
  std::uint32_t rank = 0;
  RowFamily family = RowFamily::kBlock;
  StepBounds steps;
  std::uint64_t first_item = 0, last_item = ~std::uint64_t{0};
};

// Not thread-safe.
class RowPages {
 public:
  // Borrows the first two. `what` names the rows in messages. `page_rows`: of the first page; later
  // ones grow to 16 times as many.
  RowPages(Engine& engine, AttemptTable& attempts, std::string what, const PageRange& range,
           bool with_values, std::size_t page_rows);

  // False at the end: then the attempt's data was there throughout, or the status says otherwise.
  Result<bool> Next();
  const std::vector<StoredRow>& rows() const { return rows_; }  // valid until the next call of Next
  // As of the page: which rows count.
  const Chain& chain() const { return chain_; }

 private:
  Status Read();
  std::string Query() const;

  Engine& engine_;
  AttemptTable& attempts_;
  const std::string what_;
  const PageRange range_;
  const bool with_values_;
  const std::size_t page_rows_max_;
  std::size_t page_rows_;
  std::uint64_t from_step_, from_item_;  // where the next page begins
  bool at_end_ = false;
  std::size_t pages_ = 0;
  std::string body_;
  std::vector<StoredRow> rows_;
  Chain chain_;
};

}  // namespace statcollect

#endif  // STATCOLLECT_SERVER_STORE_CLICKHOUSE_PAGES_H_
