// Reads the steps of a run for the rank check: rank by rank, ahead of the checks.
#ifndef STATCOLLECT_SERVER_QUERY_RANKS_SCAN_H_
#define STATCOLLECT_SERVER_QUERY_RANKS_SCAN_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <stop_token>
#include <vector>

#include "common/status.h"
#include "server/query/compare/replicas.h"
#include "server/query/compare/step_order.h"
#include "server/query/run_view.h"

namespace statcollect::query {

// One tensor of one rank in one step, as far as the checks need it.
struct TensorCell {
  bool present = false, finite = false, nan = false, pos_inf = false, diverged = false;
  bool varied = false, large = false;  // not a constant; not just a few elements
  std::uint16_t layout = 0;            // of the step and key: equal number, equal shape and dtype
  std::uint32_t order = 0;
  std::uint32_t segment = 0;  // StepOrder
  std::uint64_t hash = 0;
  double rms = 0;
};

// One rank's step on its own, not yet compared with other ranks; made on any thread.
struct RankStep {
  std::uint64_t step = 0;
  std::size_t attempt = 0, group = 0, index = 0;  // `index`: of the rank in its group
  std::uint32_t rank = 0;
  StepData data;
  std::vector<TensorCell> cells;  // of its observations, one for one
  // Which part of the batch the rank works on, if placements say so: equal on ranks with the same
  // part.
  std::optional<std::uint64_t> data_part;
  Status status;
};

// Threads: Run calls `take` on the calling thread only, while a few others read ahead. Memory:
// twice kWaveRankSteps steps of a rank, with their sketches.
class RankStepReader {
 public:
  static constexpr std::size_t kWaveRankSteps = 8;

  // Borrows all of them. `steps`: each with the index of its attempt.
  RankStepReader(RunView& view, const std::map<std::uint64_t, std::size_t>& steps,
                 const std::vector<Ranks>& groups, std::size_t threads)
      : view_(view),
        groups_(groups),
        threads_(threads),
        step_(steps.cbegin()),
        end_(steps.cend()) {}

  // Call it once. Passes on step by step, group by group, rank by rank. Ends with the first error
  // of `take`, which finds read errors in RankStep::status.
  Status Run(const std::function<Status(RankStep&)>& take, const std::stop_token& stop);

 private:
  std::vector<RankStep> NextWave();
  void Read(RankStep& to, const std::stop_token& stop) const;

  RunView& view_;
  const std::vector<Ranks>& groups_;
  const std::size_t threads_;
  std::map<std::uint64_t, std::size_t>::const_iterator step_;  // where the next wave begins
  const std::map<std::uint64_t, std::size_t>::const_iterator end_;
  std::size_t group_ = 0, index_ = 0;
};

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_RANKS_SCAN_H_
