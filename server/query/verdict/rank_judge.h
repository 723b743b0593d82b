// Judges the selected steps of one rank until one has a difference that rounding does not explain.
#ifndef STATCOLLECT_SERVER_QUERY_VERDICT_RANK_JUDGE_H_
#define STATCOLLECT_SERVER_QUERY_VERDICT_RANK_JUDGE_H_

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <stop_token>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/status.h"
#include "server/query/compare/diff_plan.h"
#include "server/query/compare/rank_step_diff.h"
#include "server/query/pairs/twins.h"
#include "server/query/settings/other_settings.h"
#include "server/query/settings/scheduled.h"
#include "server/query/verdict/jumps.h"
#include "server/query/verdict/measured_rule.h"
#include "server/query/verdict/noise_jumps.h"
#include "server/query/verdict/other_ranks.h"
#include "server/query/verdict/step_pairs.h"

namespace statcollect::query {

// A gap in the recording that limits how certain a root can be.
struct Caveat {
  std::string text;                         // one sentence
  Confidence most = Confidence::kPossible;  // upper limit
};

// The weight that differs most after the last step before the compared steps.
struct DifferBefore {
  std::uint64_t step = 0;
  std::string name;
  double distance = 0;
  std::string Text() const;  // one sentence
};

// The root found in a step, complete with its rows, because the step's records are not kept.
// Without one, rounding explains every difference that was judged.
struct JudgedRoot {
  std::uint64_t step = 0;
  std::uint32_t order = 0;  // in A; for a loss, that of the record before it
  Root root;
  std::optional<Caveat> caveat;  // its text is also among the root's reasons
};

// Outputs that differ although nothing that training computes from them does.
struct WithoutEffect {
  std::uint64_t step = 0;  // the first one
  std::string name;        // the first output's
  double distance = 0;
  std::uint64_t records = 0;
  std::string Text() const;  // one sentence
};

// How far twins of A could be used. Later values are worse.
enum class Measured : std::uint8_t {
  kWhole,    // they have every step that was judged
  kInPart,   // later steps were judged without them
  kUnmoved,  // they are equal bit for bit: noise did not reach the model
  kNot,      // there are none
};

// What the judged steps of a rank show; with Add, those of several ranks.
struct Judgement {
  std::optional<JudgedRoot> found;  // the first one
  // Where the weights differ most; absent: by no more than rounding, or it is not known.
  std::optional<DifferBefore> differ_before;
  std::set<std::string> noise_driven;  // parameters whose gradient is zero except for rounding
  // SpreadName of tensors whose rows depend on the data. In the first, twins showed which rows may
  // be others; in the second, nothing did.
  std::set<std::string> data_dependent, unjudged_rows;
  std::optional<LossScales> loss_scales;  // of the first step read in which the runs' scales differ
  std::optional<WithoutEffect> without_effect;
  Measured measured = Measured::kWhole;  // the worst

  // `other`: of a rank behind those so far.
  void Add(Judgement other);
};

class RankJudge {
 public:
  // `place`: the rank's position in the plan. `agreeing`: number of its records in the steps before
  // the first one to judge. `twins`: of A; null: none, then rounding is guessed. `trails`,
  // `levels`: what other ranks show, for a judgement with twins and without. All references must
  // outlive this.
  RankJudge(const DiffContext& context, const DiffPlan& plan, std::size_t place,
            std::uint64_t agreeing, const Twins* twins, OtherRanks<RankTrail>& trails,
            OtherRanks<SharedLevels>& levels)
      : context_(context),
        plan_(plan),
        place_(place),
        ranks_(plan.ranks[place]),
        twins_(twins),
        trails_(trails),
        levels_(levels),
        agreeing_(agreeing) {}

  // Call it once. `steps`: not empty; all steps before the first of them agree bit for bit.
  Result<Judgement> Judge(const std::set<std::uint64_t>& steps,
                          std::optional<std::uint64_t> last_step, const std::stop_token& stop);

 private:
  // By step, whether it is judged. Other steps, perhaps not requested ones, are read only to
  // explain later steps.
  using Steps = std::map<std::uint64_t, bool>;
  // A learning rate or weight decay that the agents recorded.
  struct OtherSetting {
    std::uint64_t step = 0;
    std::string name;   // of the scalar
    double change = 0;  // relative
  };
  // The first one that differs.
  Result<std::optional<OtherSetting>> FirstOtherSetting() const;
  using Attempts = std::pair<std::size_t, std::size_t>;  // of A, of B
  Launch LaunchOf(bool of_a, const Attempts& attempts) const;
  // The settings recorded by one attempt of each run.
  struct RecordedSettings {
    Attempts attempts;
    Config configs[2];                   // as stored: the newest values
    std::vector<EventRecord> events[2];  // settings that only this run changed
    std::uint64_t first_step[2] = {0, 0};
    std::optional<OtherSettings> in_all_steps;  // set if there are no events: the same in each step
  };
  void Begin(Measured measured);
  // Judges the steps by a model, measured or guessed: the differences that it leaves unexplained,
  // and settings that differ.
  template <typename Model>
  Status JudgeSteps(Model& model, const StepPairsReader& reader, const Steps& steps,
                    const std::optional<OtherSetting>& scalar, RecordedSettings& recorded,
                    const std::stop_token& stop);
  Result<RecordedSettings> ReadSettings(const Attempts& attempts) const;
  // The settings that differ in a step. `found`: leaves out those that may have been changed later.
  static OtherSettings SettingsAt(const RecordedSettings& recorded, std::uint64_t step, bool found);
  // Adds the steps in which a setting may have been changed and that can be judged.
  static void AddChanges(const RecordedSettings& recorded, std::set<std::uint64_t>& steps);
  std::vector<Jump> JumpsOfSettings(const RecordedSettings& recorded, std::uint64_t step,
                                    const std::vector<Explained>& explained) const;
  RecordedMethods MethodsAt(std::uint64_t step) const;
  // Adds the jumps of a step that settings explain: a scalar setting, and recorded ones.
  Status AddSettingJumps(std::uint64_t step, const std::optional<OtherSetting>& scalar,
                         RecordedSettings& recorded, const std::vector<Explained>& explained,
                         std::vector<Jump>& jumps);
  std::uint64_t IdenticalStepsBefore(std::uint64_t step) const;
  bool IsFirstOfRuns(std::uint64_t step) const;
  std::optional<Jump> UpdateWith(const OtherSetting& setting,
                                 const std::vector<Explained>& explained) const;
  void NoteWithoutEffect(std::uint64_t step, const std::vector<Explained>& explained,
                         const std::vector<std::size_t>& indices);
  // Remembers the weights after a step that was not requested.
  void NoteBefore(std::uint64_t step, const StepPairs& now);
  // Whether the weights that `step` began with were compared.
  Result<bool> KnowsWeightsBefore(const StepPairsReader& reader, std::uint64_t step,
                                  const StepPairs& now);
  Result<std::optional<Caveat>> CaveatOf(const StepPairsReader& reader, std::uint64_t step,
                                         const StepPairs& now,
                                         const std::vector<Explained>& explained, const Jump& jump);
  bool IsQuietBefore(const std::vector<Explained>& explained, std::size_t index) const;
  JudgedRoot MakeRoot(std::uint64_t step, const std::vector<Explained>& explained,
                      const std::vector<Jump>& jumps, std::size_t chosen,
                      const std::optional<Caveat>& caveat, const NoiseOfStep& noise) const;
  Divergence RowOf(std::uint64_t step, const std::vector<Explained>& explained, std::size_t index,
                   const NoiseOfStep& noise) const;

  const DiffContext& context_;
  const DiffPlan& plan_;
  const std::size_t place_;
  const RankPair ranks_;
  const Twins* const twins_;
  OtherRanks<RankTrail>& trails_;
  OtherRanks<SharedLevels>& levels_;
  const std::uint64_t agreeing_;
  Judgement judgement_;
  std::uint64_t records_before_ = 0;  // in the steps before
  bool quiet_ = true;                 // none of these records differed
};

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_VERDICT_RANK_JUDGE_H_
