// Shared by the queries that list rows.
#ifndef STATCOLLECT_SERVER_QUERY_ROWS_H_
#define STATCOLLECT_SERVER_QUERY_ROWS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "common/status.h"
#include "common/step_set.h"
#include "server/query/run_view.h"

namespace statcollect::query {

Status Cancelled();
// kResourceExhausted: "list WHAT: more than kRowsMax rows; narrow the query ...".
Status TooManyRows(const std::string& what);
// kResourceExhausted: a query would read more than this.
Status TooManyBytes(std::uint64_t bytes_max);

// True if `wanted` is empty or contains the value.
template <typename T>
bool IsWanted(const std::vector<T>& wanted, const T& value) {
  return wanted.empty() || std::find(wanted.begin(), wanted.end(), value) != wanted.end();
}

// For a run that was launched several times: the launch that each step comes from.
class StepOwners {
 public:
  // Cost: that of RunView::Steps; none for a run that was launched once.
  static Result<StepOwners> Of(const RunView& view, const StepSet& wanted);

  // Whether the step belongs to this attempt (an index of RunView::attempts): no newer one has it.
  bool IsOf(std::size_t attempt, std::uint64_t step) const {
    const auto owner = steps_.find(step);
    return owner == steps_.end() || owner->second == attempt;
  }

 private:
  explicit StepOwners(std::map<std::uint64_t, std::size_t> steps) : steps_(std::move(steps)) {}

  std::map<std::uint64_t, std::size_t> steps_;
};

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_ROWS_H_
