#include "server/query/rows.h"

#include "common/byte_size.h"
#include "server/query/reports.h"

namespace statcollect::query {

Status Cancelled() { return {Code::kCancelled, "query: cancelled"}; }

Status TooManyRows(const std::string& what) {
  return {Code::kResourceExhausted, "list " + what + ": more than " + std::to_string(kRowsMax) +
                                        " rows; narrow the question with --rank or --steps"};
}

Status TooManyBytes(std::uint64_t bytes_max) {
  return {Code::kResourceExhausted,
          "query: found more than " + Mebibytes(bytes_max) +
              " of records to read; expected no more than that for one query; narrow it with "
              "--steps or --rank, or start the collector with a higher --query-scan-max"};
}

Result<StepOwners> StepOwners::Of(const RunView& view, const StepSet& wanted) {
  if (view.attempts().size() < 2) return StepOwners({});
  STATCOLLECT_ASSIGN_OR_RETURN(auto steps, view.Steps(wanted));
  return StepOwners(std::move(steps));
}

}  // namespace statcollect::query
