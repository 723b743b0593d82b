// One activation over the steps of a run.
#ifndef STATCOLLECT_SERVER_QUERY_SERIES_H_
#define STATCOLLECT_SERVER_QUERY_SERIES_H_

#include <vector>

#include "common/status.h"
#include "server/query/reports.h"
#include "server/query/run_view.h"

namespace statcollect::query {

// By kind, output path, rank, step, micro-batch, call. kNotFound: the activation (names the closest).
Result<std::vector<SeriesPoint>> SeriesOf(RunView& view, const SeriesRequest& request);

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_SERIES_H_
