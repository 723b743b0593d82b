// Finds ranks, steps and weights that only some ranks have.
#ifndef STATCOLLECT_SERVER_QUERY_RANKS_MISSING_H_
#define STATCOLLECT_SERVER_QUERY_RANKS_MISSING_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <vector>

#include "server/query/compare/replicas.h"
#include "server/query/ranks/finding_list.h"
#include "server/query/ranks/group_step.h"
#include "server/query/run_view.h"

namespace statcollect::query {

class MissingCheck {
 public:
  using IsStreamOpen = std::function<bool(AttemptId, std::uint32_t)>;

  // Borrows all arguments; `is_open` may be empty.
  MissingCheck(RunView& view, const IsStreamOpen& is_open, const ReplicaLayout& layout,
               const KeyTable& keys, FindingList& findings)
      : view_(view), is_open_(is_open), layout_(layout), keys_(keys), findings_(findings) {}

  // Reports ranks of the newest launch that the run does not have. `step`: named in the finding.
  void CheckRanks(std::uint64_t step);
  void Check(const GroupStep& at);
  // `steps`: the checked ones, each with the index of its attempt.
  void Conclude(const std::map<std::uint64_t, std::size_t>& steps);

 private:
  // Steps that a rank lacks and others of its group have.
  struct MissingSteps {
    std::uint64_t count = 0, first = 0, last = 0;
  };

  void CountSteps(const GroupStep& at);
  void CheckWeights(const GroupStep& at);
  void AddWeight(std::uint32_t id, const std::vector<bool>& has_weights, const GroupStep& at);
  bool MayHaveLost(std::size_t attempt, std::uint32_t rank, std::uint64_t step) const;
  void AddSteps(std::uint32_t rank, const MissingSteps& missing, std::size_t attempt);

  RunView& view_;
  const IsStreamOpen& is_open_;
  const ReplicaLayout& layout_;
  const KeyTable& keys_;
  FindingList& findings_;
  std::map<std::uint32_t, MissingSteps> missing_;    // by rank
  std::map<std::uint32_t, std::uint64_t> recorded_;  // number of steps, by rank
};

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_RANKS_MISSING_H_
