// What a rank's watches were asked to record: settings `recording.*` (docs/reference-python.md).
#ifndef STATCOLLECT_SERVER_QUERY_SETTINGS_RECORDING_POLICY_H_
#define STATCOLLECT_SERVER_QUERY_SETTINGS_RECORDING_POLICY_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/records.h"
#include "common/step_set.h"
#include "server/query/settings/full_steps.h"
#include "server/query/settings/module_keys.h"

namespace statcollect::query {

class RecordingPolicy {
 public:
  // Settings that do not parse restrict nothing.
  explicit RecordingPolicy(const Config& config);
  ~RecordingPolicy();
  RecordingPolicy(RecordingPolicy&&) noexcept;

  struct Reason {
    std::string text;          // "include=blocks.*"; empty: an overhead budget
    bool of_the_step = false;  // it may be recorded in other steps
  };
  // Why a tensor was not recorded in a step; absent: it would have been, or nothing is known of the
  // policy. If several watches without a name may have recorded it, one that leaves it out is
  // enough.
  std::optional<Reason> WhyNot(const TensorDef& def, std::uint64_t step) const;

  // Whether an overhead budget lets the step be recorded in full; true without one.
  bool InFull(std::uint64_t step) const { return !full_ || full_->Contains(step); }

  // "include=blocks.*, exclude=*.dropout": which modules were left out; empty: none.
  std::string LeavesOut() const;

 private:
  struct Watch;
  std::vector<const Watch*> WatchesOf(const std::string& name) const;

  std::optional<StepSet> agent_steps_;
  std::string agent_steps_text_;
  std::optional<RecordedInFull> full_;
  std::map<std::string, std::unique_ptr<Watch>> watches_;  // by what stands in their keys
};

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_SETTINGS_RECORDING_POLICY_H_
