// What the questions that list rows share.
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
// kResourceExhausted: "list WHAT: more than kRowsMax rows; narrow the question ...".
Status TooManyRows(const std::string& what);

// Nothing wanted in particular: everything is.
template <typename T>
bool IsWanted(const std::vector<T>& wanted, const T& value) {
  return wanted.empty() || std::find(wanted.begin(), wanted.end(), value) != wanted.end();
}

// Of a run that was launched several times, which launch a step is of.
class StepOwners {
 public:
  // Cost: that of RunView::Steps; nothing for a run that was launched once.
  static Result<StepOwners> Of(const RunView& view, const StepSet& wanted);

  // Whether what this attempt (an index of RunView::attempts) has of the step is the run's: no newer one has
  // the step.
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
