// Rebuilds the state of a rank from the store, so that the rules continue where they stopped.
#ifndef STATCOLLECT_SERVER_ALARMS_STATE_LOADER_H_
#define STATCOLLECT_SERVER_ALARMS_STATE_LOADER_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <utility>

#include "common/status.h"
#include "server/alarms/rank_state.h"
#include "server/control/alarm_settings.h"
#include "server/store/run_reader.h"

namespace statcollect::alarms {

// Not thread-safe.
class StateLoader {
 public:
  // Borrows the store and the settings. `must_end`: true ends a Load with kCancelled.
  StateLoader(RunReader& store, const AlarmSettings& settings, std::function<bool()> must_end)
      : store_(store), settings_(settings), must_end_(std::move(must_end)) {}

  // `state` already has its rules and silent_until. Adds the rank's events to `state`, and the
  // first of them that reports NaN or infinities to `nonfinite`. Returns whether the rules have
  // seen all stored records; false if there are none, or more than memory allows.
  Result<bool> Load(const AttemptRank& place, RankState* state,
                    std::optional<StepAndRank>* nonfinite);
  // Passes every definition of the rank to the rules.
  Status Define(const AttemptRank& place, RankRules* rules);

 private:
  Status LoadEvents(const AttemptRank& place, RankState* state,
                    std::optional<StepAndRank>* nonfinite);
  Result<bool> Replay(const AttemptRank& place, std::uint64_t last_step, RankState* state);
  Result<std::uint64_t> ReplayFrom(const AttemptRank& place, std::uint64_t judged);

  RunReader& store_;
  const AlarmSettings& settings_;
  const std::function<bool()> must_end_;
};

}  // namespace statcollect::alarms

#endif  // STATCOLLECT_SERVER_ALARMS_STATE_LOADER_H_
