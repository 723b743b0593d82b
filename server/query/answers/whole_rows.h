// Rows of tensors that were put together from their parts on several ranks.
#ifndef STATCOLLECT_SERVER_QUERY_ANSWERS_WHOLE_ROWS_H_
#define STATCOLLECT_SERVER_QUERY_ANSWERS_WHOLE_ROWS_H_

#include "common/records.h"
#include "server/query/logical/logical_run.h"

namespace statcollect::query {

// Adds the ranks that hold the tensor. Row: v1::SeriesPoint or v1::TopRow.
template <typename Row>
void DescribeRanks(const LogicalRun& run, Row& row) {
  const auto ranks =
      run.RanksOf({static_cast<Kind>(row.kind()), row.activation(), row.output_path()});
  row.mutable_ranks()->Assign(ranks.begin(), ranks.end());
  if (!ranks.empty()) row.set_rank(ranks.front());
}

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_ANSWERS_WHOLE_ROWS_H_
