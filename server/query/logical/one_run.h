// Questions about one run whose tensors are cut over its ranks: answered for the whole tensors.
#ifndef STATCOLLECT_SERVER_QUERY_LOGICAL_ONE_RUN_H_
#define STATCOLLECT_SERVER_QUERY_LOGICAL_ONE_RUN_H_

#include <memory>

#include "common/status.h"
#include "server/query/logical/logical_run.h"
#include "server/query/run_view.h"

namespace statcollect::query {

// Whether a rank holds a part of a tensor. Reads the definitions.
Result<bool> HoldsParts(RunView& view);

// Null if no rank holds a part of a tensor, so that ranks are shown as they are. Reads the
// definitions; otherwise also the first steps of all ranks.
Result<std::unique_ptr<LogicalRun>> OpenIfCut(RunReader& store, RunView& view);

// Also if none does: the stages of a pipeline hold whole tensors, but different ones.
Result<std::unique_ptr<LogicalRun>> OpenWhole(RunReader& store, const RunView& view);

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_LOGICAL_ONE_RUN_H_
