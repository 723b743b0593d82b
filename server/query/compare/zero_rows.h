// Sets of rows of which one has been padded with zeros, as an expert's tokens up to its capacity.
#ifndef STATCOLLECT_SERVER_QUERY_COMPARE_ZERO_ROWS_H_
#define STATCOLLECT_SERVER_QUERY_COMPARE_ZERO_ROWS_H_

#include "common/records.h"
#include "server/query/run_view.h"

namespace statcollect::query {

// Two observations of one shape. Not to be moved: they point to their own layout and statistics.
struct SameRows {
  Layout layout;
  TensorStats stats;
  Observation a, b;
};

// Takes from the larger of two sets of rows (HashKind::kRows3) as many zero rows as it has rows
// more than the other; hash and sketch are the same without them. False, and *rows is meaningless:
// they are not such sets, or the larger one does not have exactly that many zeros more.
bool TakeZeroRows(const Observation& a, const Observation& b, SameRows* rows);

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_COMPARE_ZERO_ROWS_H_
