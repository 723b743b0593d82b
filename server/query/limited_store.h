// A store as one query sees it: the runs of its project, by their plain names, and reads that end
// when the query is cancelled or has read too much.
#ifndef STATCOLLECT_SERVER_QUERY_LIMITED_STORE_H_
#define STATCOLLECT_SERVER_QUERY_LIMITED_STORE_H_

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <variant>
#include <vector>

#include "common/project.h"
#include "common/records.h"
#include "common/status.h"
#include "server/store/document_store.h"

namespace statcollect::query {

// What one query may read. Thread-safe: a query's threads share it.
class ReadBudget {
 public:
  static constexpr std::uint64_t kNoLimit = ~std::uint64_t{0};

  ReadBudget(std::uint64_t bytes_max, std::stop_token stop)
      : bytes_max_(bytes_max), stop_(std::move(stop)) {}

  // kCancelled after a stop request.
  Status CheckStop() const;
  // A value of so many stored bytes was read. kCancelled after a stop request; kResourceExhausted
  // beyond the limit.
  Status Spend(std::uint64_t bytes);

 private:
  const std::uint64_t bytes_max_;
  const std::stop_token stop_;
  std::atomic<std::uint64_t> bytes_{0};
};

// Passes everything on, until the query is cancelled: then no call reaches the store. Reads of
// records spend from the budget value by value, or, in scans, block by block, so a query that is
// cancelled stops after the value at hand. Definitions and documents are not counted. What is found
// by an attempt's id needs no look at the project: ids come from Attempts.
class LimitedStore final : public DocumentStore {
 public:
  // Borrows the store. `project`: absent for all runs, by their qualified names. `bytes_max`: of
  // stored bytes, over all reads.
  LimitedStore(DocumentStore& store, std::optional<std::string> project, std::uint64_t bytes_max,
               std::stop_token stop)
      : store_(store), project_(std::move(project)), budget_(bytes_max, std::move(stop)) {}

  Status CheckStop() const override { return budget_.CheckStop(); }
  Result<std::vector<std::string>> ListRuns() override;
  Result<std::vector<AttemptMeta>> Attempts(const std::string& run) override;
  Result<std::map<std::uint32_t, RankMeta>> Ranks(AttemptId attempt) override {
    STATCOLLECT_RETURN_IF_ERROR(CheckStop());
    return store_.Ranks(attempt);
  }
  Result<SharedDefinitions> Definitions(AttemptId attempt, std::uint32_t rank) override {
    STATCOLLECT_RETURN_IF_ERROR(CheckStop());
    return store_.Definitions(attempt, rank);
  }
  Status PutDocument(const std::string& run, const std::string& name,
                     const std::optional<std::string>& content) override {
    STATCOLLECT_RETURN_IF_ERROR(CheckStop());
    return store_.PutDocument(Qualified(run), name, content);
  }
  Result<std::optional<std::string>> Document(const std::string& run,
                                              const std::string& name) override {
    STATCOLLECT_RETURN_IF_ERROR(CheckStop());
    return store_.Document(Qualified(run), name);
  }
  std::unique_ptr<StatScan> ScanStats(AttemptId attempt, std::uint32_t rank,
                                      StepBounds steps) override;
  Status VisitRecords(AttemptId attempt, std::uint32_t rank, StepBounds steps,
                      RecordVisitor visitor) override {
    STATCOLLECT_RETURN_IF_ERROR(CheckStop());
    return std::visit(
        [&](const auto* kind) { return store_.Visit(attempt, rank, steps, Limited(*kind)); },
        visitor);
  }
  Status VisitSeries(AttemptId attempt, std::uint32_t rank, std::uint32_t activation,
                     StepBounds steps, const Visitor<StatPoint>& visitor) override {
    STATCOLLECT_RETURN_IF_ERROR(CheckStop());
    return store_.VisitSeries(attempt, rank, activation, steps, Limited(visitor));
  }
  Status VisitStatSteps(AttemptId attempt, std::uint32_t rank, StepBounds steps,
                        const Visitor<std::uint64_t>& visitor) override {
    STATCOLLECT_RETURN_IF_ERROR(CheckStop());
    return store_.VisitStatSteps(attempt, rank, steps, Limited(visitor));
  }
  Result<std::string> CaptureChunkAt(AttemptId attempt, std::uint32_t rank, std::uint64_t step,
                                     std::uint32_t activation, std::uint32_t offset) override;

 private:
  // Valid as long as `visitor`.
  template <typename T>
  Visitor<T> Limited(const Visitor<T>& visitor) {
    Visitor<T> limited;
    limited.read = [this, &visitor](std::size_t bytes) {
      STATCOLLECT_RETURN_IF_ERROR(budget_.Spend(bytes));
      return visitor.Read(bytes);
    };
    limited.take = [&visitor](T record) { return visitor.take(std::move(record)); };
    return limited;
  }

  std::string Qualified(const std::string& run) const {
    return project_ ? QualifiedRun(*project_, run) : run;
  }

  DocumentStore& store_;
  const std::optional<std::string> project_;
  ReadBudget budget_;
};

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_LIMITED_STORE_H_
