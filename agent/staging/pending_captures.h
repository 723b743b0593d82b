// Holds requests for raw values, from the program or the collector, until their last step has
// passed. A request that captured nothing leaves a `capture_missed` event that says why.
//
// Threads: any. Functions named Locked need the mutex of the StagingState, the others take it.
#ifndef STATCOLLECT_AGENT_STAGING_PENDING_CAPTURES_H_
#define STATCOLLECT_AGENT_STAGING_PENDING_CAPTURES_H_

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "agent/staging/capture_queue.h"
#include "agent/staging/staging_state.h"
#include "common/capture_spec.h"

namespace statcollect {

class PendingCaptures {
 public:
  // `specs`: the program's own. `state` outlives this.
  PendingCaptures(StagingState* state, const std::vector<CaptureSpec>& specs);

  // `request`: its number at the collector; a repeated number is ignored. A request whose steps
  // have all passed is missed immediately.
  void Add(CaptureSpec spec, const std::string& request);
  // Records why nothing was captured: MatchLocked returned a target that could not be captured, or
  // the request could not be parsed.
  void Miss(std::uint64_t step, const std::string& requests, const std::string& activation,
            const std::string& why);
  void Miss(const CaptureTarget& target, const std::string& why);
  // The run ends: all requests that captured nothing are missed.
  void End();

  // Whether a request is for the current step.
  bool active_locked() const { return active_; }
  // The target, if the values of this tensor are wanted in the current step. Its activation and
  // layout are not set.
  std::optional<CaptureTarget> MatchLocked(const TensorKey& key);
  // The current step has changed: forgets requests whose last step has passed.
  void BeginStepLocked();
  void MissLocked(std::uint64_t step, const std::string& requests, const std::string& activation,
                  const std::string& why);

 private:
  std::string NearestLocked(const CaptureSpec& spec) const;

  struct Pending {
    CaptureSpec spec;
    std::string request;   // empty: the program's own
    bool matched = false;  // in any step
  };

  void MissLocked(const Pending& pending, const std::string& why)
      STATCOLLECT_REQUIRES(state_.mutex);

  StagingState& state_;
  std::vector<Pending> pending_;    // whose last step has not passed
  std::set<std::string> requests_;  // numbers received so far
  bool active_ = false;
};

}  // namespace statcollect

#endif  // STATCOLLECT_AGENT_STAGING_PENDING_CAPTURES_H_
