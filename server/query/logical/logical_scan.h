// Reads the steps of all ranks side by side, and yields each as blocks of one rank.
#ifndef STATCOLLECT_SERVER_QUERY_LOGICAL_LOGICAL_SCAN_H_
#define STATCOLLECT_SERVER_QUERY_LOGICAL_LOGICAL_SCAN_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "server/query/logical/logical_run.h"
#include "server/query/logical/step_shape.h"
#include "server/store/run_reader.h"

namespace statcollect::query {

// While its user skips steps by their digests, it reads only the hashes of the next ones, which
// takes a fraction of the time; a step that the user loads after all is then read in full.
class LogicalScan final : public StatScan {
 public:
  // Memory: one step of all ranks.
  LogicalScan(LogicalRun& run, LogicalRun::Attempt* attempt, StepBounds steps);

  bool NextHead() override;
  const BlockHead& head() const override { return heads_[at_]; }
  // Once for each head, because the block is given away.
  bool Load(bool sketches, StatColumns* columns) override;
  bool LoadHashes(HashColumns* columns) override;
  const Status& status() const override { return status_; }
  std::uint64_t bytes_read() const override;

 private:
  // Of the members, each at the next block that was not read; `there`: whether there is one.
  struct Scans {
    std::vector<std::unique_ptr<StatScan>> of;
    std::vector<bool> there;
  };

  Scans Open(StepBounds steps);
  bool GoToNextStep();  // false at the end
  void ReadHeads();     // of the step, and what it takes to know them
  bool ReadHashes();    // false: it takes the whole step
  void ReadWhole(Scans& scans);
  void ReadWholeAgain();
  MergedHeads HeadsOfMerged() const;
  bool NextBlock(std::size_t from);  // of those that are there

  LogicalRun& run_;
  LogicalRun::Attempt* const attempt_;
  const bool several_;  // steps
  Scans scans_;
  std::uint64_t bytes_again_ = 0;  // of scans that read a step again
  LogicalRun::Step gathered_;      // of the step at hand
  LogicalRun::Merged merged_;      // the same
  bool whole_ = false;             // both of the step at hand
  bool unknown_shape_ = false;     // of the step at hand
  StepHashes hashes_;
  HashColumns loaded_hashes_;
  std::uint64_t step_ = 0;
  MergedHeads heads_;
  std::size_t at_ = kMergedBlocks;  // its head; kMergedBlocks: no step is at hand
  bool loaded_ = false;             // something of the step at hand
  Status status_;
};

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_LOGICAL_LOGICAL_SCAN_H_
