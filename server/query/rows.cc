#include "server/query/rows.h"

#include "server/query/reports.h"

namespace statcollect::query {

Status Cancelled() { return {Code::kCancelled, "query: cancelled"}; }

Status TooManyRows(const std::string& what) {
  return {Code::kResourceExhausted, "list " + what + ": more than " + std::to_string(kRowsMax) +
                                        " rows; narrow the question with --rank or --steps"};
}

Result<StepOwners> StepOwners::Of(const RunView& view, const StepSet& wanted) {
  if (view.attempts().size() < 2) return StepOwners({});
  auto steps = view.Steps(wanted);
  if (!steps.ok()) return steps.status();
  return StepOwners(*std::move(steps));
}

}  // namespace statcollect::query
