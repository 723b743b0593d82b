// The rules about one rank's tensors. Receives its records in the order in which they were stored.
//
// A step is judged once it is over: its end or a record of a later step has arrived, or nothing for
// a while (Close). Then its records become findings: one finding covers all affected activations of
// a step and names the first in the order of execution. Gradients with NaN or infinities wait up to
// kGradientPatience further steps, because they may be a scaler's overflow, whose scalars may
// arrive late.
//
// Memory: about 240 bytes per activation, and 450 for each weight. Not thread-safe.
#ifndef STATCOLLECT_SERVER_ALARMS_RANK_RULES_H_
#define STATCOLLECT_SERVER_ALARMS_RANK_RULES_H_

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/records.h"
#include "common/spike_rule.h"
#include "common/update_norm.h"
#include "server/alarms/baseline.h"
#include "server/alarms/finding.h"
#include "server/alarms/scalar_rules.h"

namespace statcollect::alarms {

// A rank's weights in a step, or their gradients, as one number that is equal on ranks with equal
// values.
struct HashSum {
  std::uint64_t sum = 0, records = 0;
  bool operator==(const HashSum&) const = default;
};

struct StepDigest {
  std::uint64_t step = 0;
  HashSum weights, gradients;
};

class RankRules {
 public:
  static constexpr std::uint64_t kGradientPatience = 2;

  // `define` returns the definition of an activation; called only for findings.
  RankRules(const AlarmSettings& settings, std::function<TensorDef(std::uint32_t)> define);

  // Ignores ids that are already known.
  void Define(std::span<const TensorDef> activations, std::span<const Layout> layouts);
  // Whether Define has been called for everything that the records need.
  bool Knows(const StatColumns& stats) const;

  // Call these for one batch in this order, so that a scaler's scalars are known before the step is
  // judged. Records that were seen before are ignored.
  void AddScalar(const ScalarRecord& scalar);
  void AddStats(const StatColumns& stats);
  void AddStepEnd(std::uint64_t step);
  // Records of this and later steps are missing.
  void NoteGap() { gap_ = true; }
  // Nothing has arrived for a while: judges the current step except for its gradients; with `all`,
  // gradients too, and the step counts as judged.
  void Close(bool all);

  // The rank is already known to have had NaN or infinities.
  void SetNonfiniteSeen() { nonfinite_told_ = true; }

  std::vector<Finding> TakeFindings() { return std::exchange(findings_, {}); }
  std::vector<StepDigest> TakeDigests() { return std::exchange(digests_, {}); }
  // The last step that was judged completely; absent: none.
  std::optional<std::uint64_t> judged() const;
  std::size_t bytes() const;

 private:
  struct State {
    std::uint64_t next_step = 0;  // records of earlier steps have been seen
    std::uint64_t identity = 0;   // hash of the name
    Baseline baseline;
    Kind kind = Kind::kUnspecified;
    bool train = false, relu = false;
    bool seen = false, masked = false, ever_nonzero = false, noted_unused = false;
    std::uint8_t quiet_steps = 0, dead_steps = 0, high_steps = 0;
    std::int32_t high_group = -1, quiet_group = -1,
                 dead_group = -1;  // the alarm that it belongs to, or -1
  };
  // Activations that share an alarm.
  struct Group {
    AlarmRule rule;
    std::string subject;
    std::size_t members = 0;  // not recovered yet
  };
  struct Candidate {
    std::uint32_t activation = 0, order = 0;
    double value = 0, expected = 0;
  };
  struct Nonfinite {
    std::uint64_t step = 0;
    std::uint32_t activation = 0, order = 0;
    std::uint64_t nan = 0, pos_inf = 0, neg_inf = 0, numel = 0, activations = 0;
  };

  void Advance(std::uint64_t step);
  void AddRecord(const StatColumns& stats, std::size_t i);
  void CheckNonfinite(const TensorStats& stats, std::uint32_t activation, std::uint32_t order,
                      State& state);
  void CheckNorm(double rms, std::uint32_t activation, std::uint32_t order, State& state);
  void CheckQuiet(double rms, std::uint32_t activation, std::uint32_t order, State& state);
  void CheckDead(const TensorStats& stats, std::uint32_t activation, std::uint32_t order,
                 State& state);
  void Recover(std::int32_t* group);

  void JudgeStep();
  void JudgeUpdate();
  void JudgeGradients(bool now);
  void Join(AlarmRule rule, std::vector<Candidate>& candidates);
  void TellNonfinite(const Nonfinite& found, bool gradient);
  void TellOverflow(const Nonfinite& found);
  std::map<std::string, std::string> FieldsOf(const TensorDef& def, std::uint32_t order) const;

  const AlarmSettings& settings_;
  const std::function<TensorDef(std::uint32_t)> define_;
  ScalarRules scalars_;
  UpdateNorm update_;
  SpikeRule updates_;
  std::size_t updated_ = 0;            // weights that the running median of updates_ sums
  std::vector<State> states_;          // by activation
  std::vector<std::uint32_t> absent_;  // by layout: statistics that are absent
  std::vector<Group> groups_;
  std::vector<Finding> findings_;
  std::vector<StepDigest> digests_;

  // Of the current step:
  std::uint64_t step_ = 0;
  bool any_ = false;  // there were records of it
  bool gap_ = false;
  StepDigest digest_;
  std::optional<Nonfinite> nonfinite_, gradient_;  // first in the order of execution
  bool weight_gradients_ = false, weight_gradient_nonfinite_ = false;
  std::vector<Candidate> high_, quiet_, dead_, unused_;

  std::optional<std::uint64_t> judged_;
  bool nonfinite_told_ = false;
  std::optional<Nonfinite> waiting_;         // gradients of an earlier step
  std::map<std::uint64_t, bool> found_inf_;  // by step: the scaler's scalar
  std::uint32_t overflows_told_ = 0;
};

}  // namespace statcollect::alarms

#endif  // STATCOLLECT_SERVER_ALARMS_RANK_RULES_H_
