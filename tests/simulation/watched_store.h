// A collector's view of the store that outlives it: once the process has been killed, its calls do
// nothing. Every write is checked before it is made, and may be the moment at which the process or
// the machine ends.
#ifndef STATCOLLECT_TESTS_SIMULATION_WATCHED_STORE_H_
#define STATCOLLECT_TESTS_SIMULATION_WATCHED_STORE_H_

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "server/store/store.h"
#include "tests/simulation/history.h"
#include "tests/simulation/threads.h"

namespace statcollect::simulation {

class WatchedStore final : public Store {
 public:
  // `powered`: whether the machine still has power; asked after each write. `lost`: called if it
  // has none.
  WatchedStore(Store& inner, History& history, Threads& threads, std::function<bool()> powered,
               std::function<void()> lost)
      : inner_(inner),
        history_(history),
        threads_(threads),
        powered_(std::move(powered)),
        lost_(std::move(lost)) {}

  void Kill() { killed_ = true; }
  bool killed() const { return killed_; }

  // --- Store
  Result<std::vector<std::string>> ListRuns() override {
    return Read<Result<std::vector<std::string>>>([&] { return inner_.ListRuns(); });
  }
  Result<std::vector<AttemptMeta>> Attempts(const std::string& run) override {
    return Read<Result<std::vector<AttemptMeta>>>([&] { return inner_.Attempts(run); });
  }
  Result<std::map<std::uint32_t, RankMeta>> Ranks(AttemptId attempt) override {
    return Read<Result<std::map<std::uint32_t, RankMeta>>>([&] { return inner_.Ranks(attempt); });
  }
  Result<std::optional<RankMeta>> Rank(AttemptId attempt, std::uint32_t rank) override {
    return Read<Result<std::optional<RankMeta>>>([&] { return inner_.Rank(attempt, rank); });
  }
  Result<SharedDefinitions> Definitions(AttemptId attempt, std::uint32_t rank) override {
    return Read<Result<SharedDefinitions>>([&] { return inner_.Definitions(attempt, rank); });
  }
  std::unique_ptr<StatScan> ScanStats(AttemptId attempt, std::uint32_t rank,
                                      StepBounds steps) override {
    const Real real;
    return std::make_unique<Scan>(inner_.ScanStats(attempt, rank, steps));
  }
  Status VisitRecords(AttemptId attempt, std::uint32_t rank, StepBounds steps,
                      RecordVisitor visitor) override {
    return Read<Status>([&] { return inner_.VisitRecords(attempt, rank, steps, visitor); });
  }
  Status VisitSeries(AttemptId attempt, std::uint32_t rank, std::uint32_t activation,
                     StepBounds steps, const Visitor<StatPoint>& visitor) override {
    return Read<Status>(
        [&] { return inner_.VisitSeries(attempt, rank, activation, steps, visitor); });
  }
  Status VisitStatSteps(AttemptId attempt, std::uint32_t rank, StepBounds steps,
                        const Visitor<std::uint64_t>& visitor) override {
    return Read<Status>([&] { return inner_.VisitStatSteps(attempt, rank, steps, visitor); });
  }
  Result<AttemptMeta> CreateAttempt(const AttemptMeta& wanted) override {
    return Write<Result<AttemptMeta>>([&] { return inner_.CreateAttempt(wanted); });
  }
  Status RetireAttempts(std::span<const AttemptId> ids) override {
    return Write<Status>([&] {
      history_.Removing(inner_, ids);
      return inner_.RetireAttempts(ids);
    });
  }
  Status PurgeRetired(const std::function<bool()>& stopped) override {
    return Write<Status>([&] { return inner_.PurgeRetired(stopped); });
  }
  Status PutRank(AttemptId attempt, std::uint32_t rank, const RankMeta& meta) override {
    return Write<Status>([&] { return inner_.PutRank(attempt, rank, meta); });
  }
  Result<std::vector<AttemptTally>> Census() override {
    return Read<Result<std::vector<AttemptTally>>>([&] { return inner_.Census(); });
  }
  Status KeepRun(const std::string& run, bool keep) override {
    return Write<Status>([&] { return inner_.KeepRun(run, keep); });
  }
  Status PutDocument(const std::string& run, const std::string& name,
                     const std::optional<std::string>& content) override {
    return Write<Status>([&] { return inner_.PutDocument(run, name, content); });
  }
  Result<std::optional<std::string>> Document(const std::string& run,
                                              const std::string& name) override {
    return Read<Result<std::optional<std::string>>>([&] { return inner_.Document(run, name); });
  }
  std::unique_ptr<StreamWriter> NewWriter(AttemptId attempt, std::uint32_t rank) override {
    const Real real;
    return std::make_unique<Writer>(inner_.NewWriter(attempt, rank));
  }
  Status Append(std::span<const AppendItem> items) override {
    Dawdle();
    const Status written = AppendNow(items);
    Dawdle();
    return killed_ ? Dead() : written;
  }
  Status PutEvents(AttemptId attempt, std::span<const CollectorEvent> events) override {
    return Write<Status>([&] { return inner_.PutEvents(attempt, events); });
  }
  Status Recover() override {
    return Write<Status>([&] { return inner_.Recover(); });
  }
  Result<std::string> CaptureChunkAt(AttemptId attempt, std::uint32_t rank, std::uint64_t step,
                                     std::uint32_t activation, std::uint32_t offset) override {
    return Read<Result<std::string>>(
        [&] { return inner_.CaptureChunkAt(attempt, rank, step, activation, offset); });
  }
  Result<CheckpointReport> Checkpoint(const std::string& directory) override {
    return Read<Result<CheckpointReport>>([&] { return inner_.Checkpoint(directory); });
  }
  Result<StoreUsage> Usage() override {
    return Read<Result<StoreUsage>>([&] { return inner_.Usage(); });
  }
  bool fsync() const override { return inner_.fsync(); }

 private:
  // A disk takes its time, and some writes far more of it.
  void Dawdle() {
    const std::uint64_t chance = threads_.random()() % 40;
    if (chance < 4)
      threads_.Sleep(
          std::chrono::microseconds(threads_.random()() % (chance == 0 ? 3'000'000 : 20'000)));
  }
  Status AppendNow(std::span<const AppendItem> items) {
    return Write<Status>([&] {
      // The batch that was prepared is kept beside its prepared form, to be checked.
      std::vector<AppendItem> unwrapped(items.begin(), items.end());
      for (AppendItem& item : unwrapped) {
        const auto* prepared = static_cast<const Prepared*>(item.prepared);
        if (prepared != nullptr) item.prepared = prepared->inner.get();
        PendingItem(item, prepared == nullptr ? RecordBatch() : prepared->batch);
      }
      const Status appended = inner_.Append(unwrapped);
      if (appended.ok() && powered_()) {
        for (const AppendItem& item : unwrapped) history_.Written(item);
      }
      ahead_.clear();
      return appended;
    });
  }

  // RocksDB's own threads take the same locks.
  class Scan final : public StatScan {
   public:
    explicit Scan(std::unique_ptr<StatScan> scan) : scan_(std::move(scan)) {}
    ~Scan() override {
      const Real real;
      scan_ = nullptr;
    }
    bool NextHead() override {
      const Real real;
      return scan_->NextHead();
    }
    const BlockHead& head() const override { return scan_->head(); }
    bool Load(bool sketches, StatColumns* columns) override {
      const Real real;
      return scan_->Load(sketches, columns);
    }
    bool LoadHashes(HashColumns* columns) override {
      const Real real;
      return scan_->LoadHashes(columns);
    }
    const Status& status() const override { return scan_->status(); }
    std::uint64_t bytes_read() const override { return scan_->bytes_read(); }

   private:
    std::unique_ptr<StatScan> scan_;
  };

  struct Prepared final : PreparedBatch {
    RecordBatch batch;
    std::unique_ptr<PreparedBatch> inner;
  };
  struct Writer final : StreamWriter {
    explicit Writer(std::unique_ptr<StreamWriter> writer) : inner(std::move(writer)) {}
    std::unique_ptr<PreparedBatch> Prepare(const RecordBatch& batch) override {
      const Real real;
      auto prepared = std::make_unique<Prepared>();
      prepared->batch = batch;
      prepared->inner = inner->Prepare(batch);
      return prepared;
    }
    std::unique_ptr<StreamWriter> inner;
  };

  static Status Dead() { return {Code::kUnavailable, "this process was killed"}; }

  template <typename R, typename F>
  R Read(F&& read) {
    if (killed_) return Dead();
    const Real real;
    return read();
  }
  template <typename R, typename F>
  R Write(F&& write) {
    threads_.Yield();
    if (killed_) return Dead();
    R result = [&] {
      const Real real;
      return write();
    }();
    if (!powered_()) lost_();
    threads_.Yield();
    if (killed_) return Dead();
    return result;
  }
  // Several items of a rank may be in one write: each follows the one before.
  void PendingItem(const AppendItem& item, const RecordBatch& batch) {
    const auto place = std::pair(item.attempt, item.rank);
    if (const auto before = ahead_.find(place); before != ahead_.end()) {
      if (batch.records() > 0 && batch.first_seq != before->second + 1)
        history_.Fail("a write with a gap or an overlap within itself");
      history_.CheckBatch(item, batch);
    } else {
      history_.CheckItem(inner_, item, batch);
    }
    if (batch.records() > 0) ahead_[place] = batch.last_seq();
  }

  Store& inner_;
  History& history_;
  Threads& threads_;
  const std::function<bool()> powered_;
  const std::function<void()> lost_;
  bool killed_ = false;
  std::map<std::pair<AttemptId, std::uint32_t>, std::uint64_t> ahead_;
};

}  // namespace statcollect::simulation

#endif  // STATCOLLECT_TESTS_SIMULATION_WATCHED_STORE_H_
