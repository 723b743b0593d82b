// A store that forwards every call to another one; override what should differ. A wrapper that must
// see every read has to override each read that is added to Store.
#ifndef STATCOLLECT_TESTS_SUPPORT_FORWARDING_STORE_H_
#define STATCOLLECT_TESTS_SUPPORT_FORWARDING_STORE_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "server/store/store.h"

namespace statcollect::testing {

class ForwardingStore : public Store {
 public:
  // Borrows the store.
  explicit ForwardingStore(Store& store) : store_(store) {}

  void BeginStop() override { store_.BeginStop(); }
  Status CheckStop() const override { return store_.CheckStop(); }
  Result<std::vector<std::string>> ListRuns() override { return store_.ListRuns(); }
  Result<std::vector<AttemptMeta>> Attempts(const std::string& run) override {
    return store_.Attempts(run);
  }
  Result<AttemptMeta> CreateAttempt(const AttemptMeta& wanted) override {
    return store_.CreateAttempt(wanted);
  }
  Status RetireAttempts(std::span<const AttemptId> ids) override {
    return store_.RetireAttempts(ids);
  }
  Status PurgeRetired(const std::function<bool()>& stopped) override {
    return store_.PurgeRetired(stopped);
  }
  Result<std::map<std::uint32_t, RankMeta>> Ranks(AttemptId attempt) override {
    return store_.Ranks(attempt);
  }
  Result<std::optional<RankMeta>> Rank(AttemptId attempt, std::uint32_t rank) override {
    return store_.Rank(attempt, rank);
  }
  Result<std::optional<RankMeta>> ClaimRank(AttemptId attempt, std::uint32_t rank) override {
    return store_.ClaimRank(attempt, rank);
  }
  Result<bool> EndRank(AttemptId attempt, std::uint32_t rank) override {
    return store_.EndRank(attempt, rank);
  }
  Status PutRank(AttemptId attempt, std::uint32_t rank, const RankMeta& meta) override {
    return store_.PutRank(attempt, rank, meta);
  }
  Result<SharedDefinitions> Definitions(AttemptId attempt, std::uint32_t rank) override {
    return store_.Definitions(attempt, rank);
  }
  std::unique_ptr<StreamWriter> NewWriter(AttemptId attempt, std::uint32_t rank) override {
    return store_.NewWriter(attempt, rank);
  }
  Status Append(std::span<const AppendItem> items) override { return store_.Append(items); }
  Status Recover() override { return store_.Recover(); }
  std::unique_ptr<StatScan> ScanStats(AttemptId attempt, std::uint32_t rank,
                                      StepBounds steps) override {
    return store_.ScanStats(attempt, rank, steps);
  }
  Status VisitRecords(AttemptId attempt, std::uint32_t rank, StepBounds steps,
                      RecordVisitor visitor) override {
    return store_.VisitRecords(attempt, rank, steps, visitor);
  }
  Status VisitSeries(AttemptId attempt, std::uint32_t rank, std::uint32_t activation,
                     StepBounds steps, const Visitor<StatPoint>& visitor) override {
    return store_.VisitSeries(attempt, rank, activation, steps, visitor);
  }
  Status VisitStatSteps(AttemptId attempt, std::uint32_t rank, StepBounds steps,
                        const Visitor<std::uint64_t>& visitor) override {
    return store_.VisitStatSteps(attempt, rank, steps, visitor);
  }
  Result<std::string> CaptureChunkAt(AttemptId attempt, std::uint32_t rank, std::uint64_t step,
                                     std::uint32_t activation, std::uint32_t offset) override {
    return store_.CaptureChunkAt(attempt, rank, step, activation, offset);
  }
  Status PutEvents(AttemptId attempt, std::span<const CollectorEvent> events) override {
    return store_.PutEvents(attempt, events);
  }
  Result<StoreUsage> Usage() override { return store_.Usage(); }
  bool fsync() const override { return store_.fsync(); }
  Result<std::vector<AttemptTally>> Census() override { return store_.Census(); }
  Status PutDocument(const std::string& run, const std::string& name,
                     const std::optional<std::string>& content) override {
    return store_.PutDocument(run, name, content);
  }
  Result<std::optional<std::string>> Document(const std::string& run,
                                              const std::string& name) override {
    return store_.Document(run, name);
  }
  Status KeepRun(const std::string& run, bool keep) override { return store_.KeepRun(run, keep); }
  Result<CheckpointReport> Checkpoint(const std::string& directory) override {
    return store_.Checkpoint(directory);
  }

 protected:
  Store& store_;
};

}  // namespace statcollect::testing

#endif  // STATCOLLECT_TESTS_SUPPORT_FORWARDING_STORE_H_
