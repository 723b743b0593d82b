// Checks that ranks that must hold the same weights still do: one number per rank and step,
// compared when all ranks of a group have it. docs/ranks.md describes the groups; `statctl ranks`
// shows which tensor differs.
#ifndef STATCOLLECT_SERVER_ALARMS_REPLICA_RULE_H_
#define STATCOLLECT_SERVER_ALARMS_REPLICA_RULE_H_

#include <cstdint>
#include <map>
#include <vector>

#include "server/alarms/finding.h"
#include "server/alarms/rank_rules.h"
#include "server/query/compare/replicas.h"

namespace statcollect::alarms {

// One attempt. Memory: 100 bytes per digest of an incomplete step, at most kDigestsMax digests,
// because ranks may be many steps apart after a restart or a reconnect. If there are more, the
// earliest steps are dropped. Not thread-safe.
class ReplicaRule {
 public:
  static constexpr std::size_t kDigestsMax = 65'536;

  explicit ReplicaRule(query::ReplicaLayout layout) : layout_(std::move(layout)) {}

  struct Told {
    std::uint32_t rank = 0;  // the lowest that differs from the majority
    Finding finding;
  };
  // Reports ranks whose weights differ now and were equal before, and when they are equal again.
  std::vector<Told> Add(std::uint32_t rank, const StepDigest& digest);

 private:
  struct Sort {
    bool agreed = false, differs = false;
    std::uint32_t told_of = 0;  // rank of the active alarm
  };
  using Digests = std::map<std::uint32_t, StepDigest>;

  void Compare(std::size_t group, std::uint64_t step, const Digests& digests,
               std::vector<Told>* told);
  void CompareSort(std::size_t group, std::uint64_t step,
                   const std::map<std::uint32_t, HashSum>& sums, const char* what, Sort* sort,
                   std::vector<Told>* told);
  void Forget(std::map<std::uint64_t, Digests>::iterator step);

  const query::ReplicaLayout layout_;
  std::map<std::uint64_t, Digests> steps_;
  std::size_t held_ = 0;                             // digests
  std::map<std::size_t, Sort> weights_, gradients_;  // by group
};

}  // namespace statcollect::alarms

#endif  // STATCOLLECT_SERVER_ALARMS_REPLICA_RULE_H_
