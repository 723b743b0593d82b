// Judges the chosen steps of one rank, until one has a difference that rounding does not explain.
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
#include "server/query/compare/step_order.h"
#include "server/query/settings/other_settings.h"
#include "server/query/verdict/explain.h"
#include "server/query/verdict/jumps.h"

namespace statcollect::query {

// What was found in a step. Rows are made where it is found: the step's records are not kept.
struct JudgedRoot {
  std::uint64_t step = 0;
  std::uint32_t order = 0;  // of A; of a loss, of what ran before it
  Root root;
};

class RankJudge {
 public:
  // `place`: of the rank in the plan. `agreeing`: its records in the steps before the first that it is to
  // judge. Borrows all of it.
  RankJudge(const DiffContext& context, const DiffPlan& plan, std::size_t place, std::uint64_t agreeing)
      : context_(context), plan_(plan), place_(place), ranks_(plan.ranks[place]), records_before_(agreeing) {}

  // `steps`: ascending; those before the first of them agree bit for bit.
  Result<std::optional<JudgedRoot>> Judge(const std::set<std::uint64_t>& steps,
                                          std::optional<std::uint64_t> last_step,
                                          const std::stop_token& stop);

 private:
  struct StepPairs {
    StepData a, b;
    std::vector<ScalarRecord> losses_a, losses_b;
    std::vector<TensorPair> pairs;  // in A's order
  };

  using Steps = std::map<std::uint64_t, bool>;  // whether it is judged, or only read for what follows
  Steps WithThoseBefore(const std::set<std::uint64_t>& steps, std::optional<std::uint64_t> last_step) const;
  Status Read(std::uint64_t step, StepPairs& to);
  Status AddTensors(std::uint64_t step, StepPairs& to) const;
  void AddLosses(StepPairs& to) const;
  // A learning rate or weight decay that the agents recorded.
  struct OtherSetting {
    std::uint64_t step = 0;
    std::string name;   // of the scalar
    double change = 0;  // relative
  };
  static std::size_t PlaceOfLoss(const std::vector<TensorPair>& pairs, const StepOrder& order,
                                 std::uint32_t segment);
  // The first that differs.
  Result<std::optional<OtherSetting>> FirstOtherSetting() const;
  // What the configurations tell in a step, without what an event says was changed while a run ran.
  Result<OtherSettings> SettingsAt(std::uint64_t step) const;
  Status AddSettingJumps(std::uint64_t step, const std::optional<OtherSetting>& scalar,
                         const std::vector<Explained>& explained, std::vector<Jump>& jumps);
  bool IsFirstOfRuns(std::uint64_t step) const;
  std::optional<Jump> UpdateWith(const OtherSetting& setting, const std::vector<Explained>& explained) const;
  JudgedRoot MakeRoot(std::uint64_t step, const std::vector<Explained>& explained,
                      const std::vector<Jump>& jumps, std::size_t chosen) const;
  Divergence RowOf(std::uint64_t step, const std::vector<Explained>& explained, std::size_t index) const;

  const DiffContext& context_;
  const DiffPlan& plan_;
  const std::size_t place_;
  const RankPair ranks_;
  std::uint64_t records_before_ = 0;  // of the steps before
  bool quiet_ = true;                 // none of them differed
  std::optional<std::pair<std::pair<std::size_t, std::size_t>, OtherSettings>> settings_;  // of two attempts
};

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_VERDICT_RANK_JUDGE_H_
