// Decides whether two runs are compared as one model each, instead of rank by rank.
#ifndef STATCOLLECT_SERVER_QUERY_LOGICAL_CHOOSE_H_
#define STATCOLLECT_SERVER_QUERY_LOGICAL_CHOOSE_H_

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/status.h"
#include "server/query/logical/logical_run.h"
#include "server/query/reports.h"
#include "server/query/run_view.h"
#include "server/store/run_reader.h"

namespace statcollect::query {

struct LogicalPair {
  std::unique_ptr<LogicalRun> a, b;
  std::string ranks;               // how the ranks' tensors were put together
  std::vector<std::string> notes;  // what is compared and what is not, one sentence each
};

// Absent: rank by rank. That is so if the request asks for it or for single ranks, and if both runs
// are cut alike or nothing is known about how they are cut. Reads the definitions; for a pair, also
// the first steps of all ranks.
Result<std::optional<LogicalPair>> ChooseLogical(RunReader& store, RunView& a, RunView& b,
                                                 const DiffRequest& request);

// How many times more parts B cuts a batch into, each of which may have a loss of its own: by
// micro-batches, and by ranks as well. Only where a batch is cut, and only factors other than 1.
std::vector<double> LossFactors(const LogicalPair& pair);

// Adds the ranks that hold each tensor, which of their parts differ in the first divergence and at
// the root, and what was found while reading. `a`, `b`: the runs as they are. Cost: reads a step of
// all ranks for each of the two.
Status DescribeRanks(const LogicalPair& pair, const RunView& a, const RunView& b,
                     DiffReport* report);

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_LOGICAL_CHOOSE_H_
