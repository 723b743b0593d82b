// Checks losses that were equal on all ranks, as reduced ones are, until a step in which they
// differ.
#ifndef STATCOLLECT_SERVER_QUERY_RANKS_LOSSES_H_
#define STATCOLLECT_SERVER_QUERY_RANKS_LOSSES_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "common/status.h"
#include "server/query/ranks/batches.h"
#include "server/query/ranks/finding_list.h"
#include "server/query/ranks/group_step.h"
#include "server/query/run_view.h"

namespace statcollect::query {

class LossCheck {
 public:
  // Borrows all arguments. `ranks`: the requested ones. `batches` must have checked a step before
  // it is checked here.
  LossCheck(RunView& view, const Ranks& ranks, const BatchCheck& batches, FindingList& findings)
      : view_(view), ranks_(ranks), batches_(batches), findings_(findings) {}

  // Call it with steps in ascending order.
  Status Check(const GroupStep& at);

 private:
  using NameAndBatch = std::pair<std::string, std::uint32_t>;  // and micro-batch
  using RankValues = std::vector<std::pair<std::uint32_t, double>>;
  struct History {
    std::uint64_t agreeing = 0;
    bool done = false;  // it differs from the start, or has been reported
  };

  Status ReadScalars(const GroupStep& at);
  std::map<NameAndBatch, RankValues> ValuesOf(const GroupStep& at) const;
  bool AddNonfinite(const NameAndBatch& of, const RankValues& losses, const GroupStep& at);
  void AddDifference(const NameAndBatch& of, const RankValues& losses, const GroupStep& at);

  RunView& view_;
  const Ranks& ranks_;
  const BatchCheck& batches_;
  FindingList& findings_;
  std::map<std::pair<std::size_t, std::string>, History> losses_;  // by group
  std::map<std::uint32_t, std::vector<ScalarRecord>>
      scalars_;  // of the current span of steps, by rank
  std::uint64_t span_ = ~std::uint64_t{0};
  std::size_t span_attempt_ = 0;
};

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_RANKS_LOSSES_H_
