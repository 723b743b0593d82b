#include "server/query/limited_store.h"

#include <utility>

#include "server/query/rows.h"

namespace statcollect::query {
namespace {

// Spends what the scan has read since it last looked.
class LimitedScan final : public StatScan {
 public:
  LimitedScan(std::unique_ptr<StatScan> scan, ReadBudget& budget)
      : scan_(std::move(scan)), budget_(budget), status_(budget.CheckStop()) {}

  bool NextHead() override { return status_.ok() && scan_->NextHead() && Spend(); }
  const BlockHead& head() const override { return scan_->head(); }
  bool Load(bool sketches, StatColumns* columns) override {
    return status_.ok() && scan_->Load(sketches, columns) && Spend();
  }
  bool LoadHashes(HashColumns* columns) override {
    return status_.ok() && scan_->LoadHashes(columns) && Spend();
  }
  const NumberColumns* Columns() override {
    return Paid(status_.ok() ? scan_->Columns() : nullptr);
  }
  const NumberColumns* Numbers(NumberSet wanted) override {
    return Paid(status_.ok() ? scan_->Numbers(wanted) : nullptr);
  }
  const Status& status() const override { return status_.ok() ? scan_->status() : status_; }
  std::uint64_t bytes_read() const override { return scan_->bytes_read(); }

 private:
  bool Spend() {
    const std::uint64_t read = scan_->bytes_read();
    status_ = budget_.Spend(read - spent_);
    spent_ = read;
    return status_.ok();
  }
  const NumberColumns* Paid(const NumberColumns* columns) {
    return columns != nullptr && Spend() ? columns : nullptr;
  }

  const std::unique_ptr<StatScan> scan_;
  ReadBudget& budget_;
  std::uint64_t spent_ = 0;
  Status status_;
};

}  // namespace

Status ReadBudget::CheckStop() const { return stop_.stop_requested() ? Cancelled() : Status::Ok(); }

Status ReadBudget::Spend(std::uint64_t bytes) {
  STATCOLLECT_RETURN_IF_ERROR(CheckStop());
  if (bytes_max_ == kNoLimit) return Status::Ok();
  const std::uint64_t total = bytes_.fetch_add(bytes, std::memory_order_relaxed) + bytes;
  return total <= bytes_max_ ? Status::Ok() : TooManyBytes(bytes_max_);
}

Result<std::vector<std::string>> LimitedStore::ListRuns() {
  STATCOLLECT_RETURN_IF_ERROR(CheckStop());
  auto all = store_.ListRuns();
  if (!all.ok() || !project_) return all;
  std::vector<std::string> runs;
  for (const std::string& qualified : *all) {
    const ProjectRun of = SplitRun(qualified);
    if (of.project == *project_) runs.emplace_back(of.run);
  }
  return runs;
}

Result<std::vector<AttemptMeta>> LimitedStore::Attempts(const std::string& run) {
  STATCOLLECT_RETURN_IF_ERROR(CheckStop());
  auto attempts = store_.Attempts(Qualified(run));
  if (!attempts.ok()) return attempts;
  for (AttemptMeta& attempt : *attempts) attempt.run = run;
  return attempts;
}

std::unique_ptr<StatScan> LimitedStore::ScanStats(AttemptId attempt, std::uint32_t rank,
                                                  StepBounds steps) {
  return std::make_unique<LimitedScan>(store_.ScanStats(attempt, rank, steps), budget_);
}

Result<std::string> LimitedStore::CaptureChunkAt(AttemptId attempt, std::uint32_t rank,
                                                 std::uint64_t step, std::uint32_t activation,
                                                 std::uint32_t offset) {
  STATCOLLECT_RETURN_IF_ERROR(CheckStop());
  auto chunk = store_.CaptureChunkAt(attempt, rank, step, activation, offset);
  if (chunk.ok()) STATCOLLECT_RETURN_IF_ERROR(budget_.Spend(chunk->size()));
  return chunk;
}

}  // namespace statcollect::query
