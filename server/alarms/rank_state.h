// The alarms' state of one rank.
#ifndef STATCOLLECT_SERVER_ALARMS_RANK_STATE_H_
#define STATCOLLECT_SERVER_ALARMS_RANK_STATE_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "server/alarms/rank_rules.h"
#include "server/store/run_reader.h"

namespace statcollect::alarms {

using AttemptRank = std::pair<AttemptId, std::uint32_t>;
using StepAndRank = std::pair<std::uint64_t, std::uint32_t>;

struct RankState {
  AttemptMeta attempt;
  std::unique_ptr<RankRules> rules;
  std::optional<std::uint64_t>
      silent_until;  // the last step that had been judged before the state was built
  std::set<std::pair<AlarmRule, std::string>> active;  // rule and subject
  std::set<std::uint64_t> stored;              // events that the run already had, by EventId
  std::chrono::steady_clock::time_point last;  // of the last record
  std::size_t bytes = 0;
  bool paused = false, closed = false, too_large = false;
};

}  // namespace statcollect::alarms

#endif  // STATCOLLECT_SERVER_ALARMS_RANK_STATE_H_
