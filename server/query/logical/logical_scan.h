// Reads the steps of all ranks side by side, and yields each as blocks of one rank.
#ifndef STATCOLLECT_SERVER_QUERY_LOGICAL_LOGICAL_SCAN_H_
#define STATCOLLECT_SERVER_QUERY_LOGICAL_LOGICAL_SCAN_H_

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "server/query/logical/logical_run.h"
#include "server/store/store.h"

namespace statcollect::query {

class LogicalScan final : public StatScan {
 public:
  // Memory: one step of all ranks.
  LogicalScan(LogicalRun& run, LogicalRun::Attempt* attempt, StepBounds steps);

  bool NextHead() override;
  const BlockHead& head() const override { return head_; }
  // With sketches: once for each head, because the block is given away.
  bool Load(bool sketches, StatColumns* columns) override;
  const Status& status() const override { return status_; }
  std::uint64_t bytes_read() const override;

 private:
  bool ReadStep();  // false at the end or on failure

  LogicalRun& run_;
  LogicalRun::Attempt* const attempt_;
  std::vector<std::unique_ptr<StatScan>> scans_;  // by member
  std::vector<bool> there_;                       // whether a scan stands at a block
  LogicalRun::Step gathered_;                     // of the step at hand
  std::vector<StatColumns> blocks_;               // the same, merged
  std::size_t at_ = 0;
  std::uint64_t step_ = 0;
  BlockHead head_;
  Status status_;
};

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_LOGICAL_LOGICAL_SCAN_H_
