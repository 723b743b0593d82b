// A store as one query sees it: its reads end when the query is cancelled or has read too much.
#ifndef STATCOLLECT_SERVER_QUERY_LIMITED_STORE_H_
#define STATCOLLECT_SERVER_QUERY_LIMITED_STORE_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <stop_token>
#include <string>

#include "server/store/forwarding_store.h"

namespace statcollect::query {

// What one query may read. Thread-safe: a query's threads share it.
class ReadBudget {
 public:
  static constexpr std::uint64_t kNoLimit = ~std::uint64_t{0};

  ReadBudget(std::uint64_t bytes_max, std::stop_token stop) : bytes_max_(bytes_max), stop_(std::move(stop)) {}

  // A value of so many stored bytes was read. kCancelled after a stop request; kResourceExhausted beyond the
  // limit.
  Status Spend(std::uint64_t bytes);

 private:
  const std::uint64_t bytes_max_;
  const std::stop_token stop_;
  std::atomic<std::uint64_t> bytes_{0};
};

// Passes everything on. Reads of records spend from the budget value by value, or, in scans, block by block, so
// a query that is cancelled stops after the value at hand. Definitions and documents are not counted.
class LimitedStore final : public ForwardingStore {
 public:
  // Borrows the store. `bytes_max`: of stored bytes, over all reads.
  LimitedStore(Store& store, std::uint64_t bytes_max, std::stop_token stop)
      : ForwardingStore(store), budget_(bytes_max, std::move(stop)) {}

  std::unique_ptr<StatScan> ScanStats(AttemptId attempt, std::uint32_t rank, StepBounds steps) override;
  Status Visit(AttemptId attempt, std::uint32_t rank, StepBounds steps,
               const Visitor<ScalarRecord>& visitor) override {
    return store_.Visit(attempt, rank, steps, Limited(visitor));
  }
  Status Visit(AttemptId attempt, std::uint32_t rank, StepBounds steps,
               const Visitor<EventRecord>& visitor) override {
    return store_.Visit(attempt, rank, steps, Limited(visitor));
  }
  Status Visit(AttemptId attempt, std::uint32_t rank, StepBounds steps,
               const Visitor<StepRecord>& visitor) override {
    return store_.Visit(attempt, rank, steps, Limited(visitor));
  }
  Status Visit(AttemptId attempt, std::uint32_t rank, StepBounds steps,
               const Visitor<MemoryRecord>& visitor) override {
    return store_.Visit(attempt, rank, steps, Limited(visitor));
  }
  Status Visit(AttemptId attempt, std::uint32_t rank, StepBounds steps,
               const Visitor<DensityRecord>& visitor) override {
    return store_.Visit(attempt, rank, steps, Limited(visitor));
  }
  Status Visit(AttemptId attempt, std::uint32_t rank, StepBounds steps,
               const Visitor<ExponentRecord>& visitor) override {
    return store_.Visit(attempt, rank, steps, Limited(visitor));
  }
  Status Visit(AttemptId attempt, std::uint32_t rank, StepBounds steps,
               const Visitor<StoredCapture>& visitor) override {
    return store_.Visit(attempt, rank, steps, Limited(visitor));
  }
  Status VisitSeries(AttemptId attempt, std::uint32_t rank, std::uint32_t activation, StepBounds steps,
                     const Visitor<StatPoint>& visitor) override {
    return store_.VisitSeries(attempt, rank, activation, steps, Limited(visitor));
  }
  Status VisitStatSteps(AttemptId attempt, std::uint32_t rank, StepBounds steps,
                        const Visitor<std::uint64_t>& visitor) override {
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

  ReadBudget budget_;
};

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_LIMITED_STORE_H_
