// Settings of optimizers that a schedule changes from step to step. A configuration has their
// values in the first update of a launch.
#ifndef STATCOLLECT_SERVER_QUERY_SETTINGS_SCHEDULED_H_
#define STATCOLLECT_SERVER_QUERY_SETTINGS_SCHEDULED_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "server/query/run_view.h"

namespace statcollect::query {

// A rank of one attempt; without a number, the lowest rank of each attempt.
struct Launch {
  const RunView& view;
  std::size_t attempt = 0;
  std::optional<std::uint32_t> rank;

  const RankMeta* Meta() const;  // null if the attempt lacks the rank
};

// Whether the launches begin at the same step; false if one of these steps is unknown.
bool BeginTogether(const Launch& a, const Launch& b);

// Learning rate, momentum and betas that differ between launches which begin at different steps are
// taken from the newest launches up to these that begin at the same step. Without any, they are
// left out. Returns the keys that were left out, ascending. Cost: a pass over both configurations.
std::vector<std::string> AlignScheduled(const Launch& a, const Launch& b,
                                        std::map<std::string, std::string>& of_a,
                                        std::map<std::string, std::string>& of_b);

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_SETTINGS_SCHEDULED_H_
