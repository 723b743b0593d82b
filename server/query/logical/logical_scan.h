// Reads the steps of all ranks side by side, and yields each as blocks of one rank.
#ifndef STATCOLLECT_SERVER_QUERY_LOGICAL_LOGICAL_SCAN_H_
#define STATCOLLECT_SERVER_QUERY_LOGICAL_LOGICAL_SCAN_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "server/query/logical/logical_run.h"
#include "server/store/run_reader.h"

namespace statcollect::query {

class LogicalScan final : public StatScan {
 public:
  // Memory: one step of all ranks.
  LogicalScan(LogicalRun& run, LogicalRun::Attempt* attempt, StepBounds steps);

  bool NextHead() override;
  const BlockHead& head() const override { return head_; }
  // Once for each head, because the block is given away.
  bool Load(bool sketches, StatColumns* columns) override;
  bool LoadHashes(HashColumns* columns) override;
  const Status& status() const override { return status_; }
  std::uint64_t bytes_read() const override;

 private:
  bool GoToNextStep();  // false at the end
  void ReadStep();
  bool NextBlock(std::size_t from);  // of those that have records

  LogicalRun& run_;
  LogicalRun::Attempt* const attempt_;
  // Of the members, each at the next block that was not read; `there_`: whether there is one.
  std::vector<std::unique_ptr<StatScan>> scans_;
  std::vector<bool> there_;
  LogicalRun::Step gathered_;  // of the step at hand
  LogicalRun::Merged merged_;  // the same
  std::uint64_t step_ = 0;
  BlockHead head_;
  std::size_t at_ = 0;  // its block
  Status status_;
};

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_LOGICAL_LOGICAL_SCAN_H_
