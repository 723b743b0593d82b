// Compares weights that a launch loaded in mid-run while the other run was already training and
// loaded none.
#ifndef STATCOLLECT_SERVER_QUERY_DIFF_LOADED_WEIGHTS_H_
#define STATCOLLECT_SERVER_QUERY_DIFF_LOADED_WEIGHTS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include "common/status.h"
#include "server/query/compare/pair_judge.h"
#include "server/query/compare/rank_step_diff.h"

namespace statcollect::query {

// A checkpoint holds the weights after the step before it, so such weights are compared with those
// that the other run had after that step. Not thread-safe. Context is borrowed. Cost: reads two
// steps of the rank per launch.
class LoadedWeights {
 public:
  explicit LoadedWeights(const DiffContext& context) : context_(context) {}

  // Whether the record is a weight loaded in the first step of a launch, while the run that lacks
  // it was already training.
  bool IsLoaded(const MissingRecord& missing, const RankStepFindings& at) const;
  // Whether the record was made before the training of a step with which the run that lacks it was
  // launched again: the launch before that made it, if at all.
  bool IsBeforeLaunch(const MissingRecord& missing, const RankStepFindings& at) const;
  // Removes those that have a counterpart from the missing records, and adds them to the findings'
  // tally, rows and first bitwise difference.
  Status Compare(RankStepFindings& at);

  const std::set<std::string>& notes() const { return notes_; }

 private:
  // Whether a launch of this run begins with the step, while the other run was already training.
  bool BeginsAt(const RankStepFindings& at, bool of_a) const;
  using Updated =
      std::map<std::tuple<Kind, std::string, std::string>, const Observation*>;  // by name, path

  // The attempt that has the step. Cached, because it is the same for every rank.
  Result<std::optional<std::size_t>> OwnerOf(bool of_a, std::uint64_t step);
  // The previous step of one rank; empty if the run has no statistics of it.
  Result<std::optional<StepData>> ReadBefore(bool of_a, std::uint32_t rank, std::uint64_t step);
  Status CompareSide(bool in_a, RankStepFindings& at);
  // Whether it found a counterpart.
  bool ComparePair(const Observation& loaded, const Updated& updated, MissingRecord& missing,
                   PairJudge& judge, RankStepFindings& at);

  const DiffContext& context_;
  std::set<std::string> notes_;
  std::map<std::pair<bool, std::uint64_t>, std::optional<std::size_t>> owners_;
};

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_DIFF_LOADED_WEIGHTS_H_
