// Store in memory, with faults on request. It checks what a real store relies on: an observation is
// written once, ids are defined, attempts exist; the first breach is kept in violation().
#ifndef STATCOLLECT_TESTS_SUPPORT_FAKE_STORE_H_
#define STATCOLLECT_TESTS_SUPPORT_FAKE_STORE_H_

#include <algorithm>
#include <atomic>
#include <bit>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "server/store/store.h"
#include "tests/support/fake_scan.h"

namespace statcollect::testing {

class FakeStore final : public Store {
 public:
  // --- faults and observations, for tests
  void FailAppends(const Status& status) {
    Set([&] { append_failure_ = status; });
  }
  void SetDiskFree(std::uint64_t bytes) {
    Set([&] { usage_.disk_free_bytes = bytes; });
  }
  // Until released, Append waits inside.
  void BlockAppends() {
    Set([&] { blocked_ = true; });
  }
  void ReleaseAppends() {
    Set([&] { blocked_ = false; });
  }
  // Waits until an Append is inside a blocked store.
  void AwaitBlockedAppend() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return inside_ > 0; });
  }
  // Until released, PurgeRetired waits inside, as one of a large run does, or until it is stopped.
  void BlockPurges() {
    Set([&] { purge_blocked_ = true; });
  }
  void ReleasePurges() {
    Set([&] { purge_blocked_ = false; });
  }
  void FailPurges(const Status& status) {
    Set([&] { purge_failure_ = status; });
  }
  // Waits until PurgeRetired has been called so often.
  void AwaitPurge(int calls = 1) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return purges_ >= calls; });
  }
  std::size_t retired() const {
    return Get([&] { return retired_.size(); });
  }
  // Values and blocks read so far; `on_read` is called with the number of each before it is handed
  // out.
  std::uint64_t reads() const { return reads_; }
  void OnRead(std::function<void(std::uint64_t reads)> on_read) { on_read_ = std::move(on_read); }
  // Items of each Append, in order.
  std::vector<std::size_t> appends() const {
    return Get([&] { return appends_; });
  }
  int usage_calls() const {
    return Get([&] { return usage_calls_; });
  }
  // How often the ranks of this attempt were read.
  int ranks_calls(AttemptId attempt) const {
    return Get([&] {
      const auto calls = ranks_calls_.find(attempt);
      return calls == ranks_calls_.end() ? 0 : calls->second;
    });
  }
  std::string violation() const {
    return Get([&] { return violation_; });
  }
  std::vector<RecordBatch> batches(AttemptId attempt, std::uint32_t rank) const {
    return Get([&] {
      const auto it = data_.find({attempt, rank});
      return it == data_.end() ? std::vector<RecordBatch>() : it->second.batches;
    });
  }

  // Bytes of an attempt; the store's files grow by them, and shrink by `percent` of them when it is
  // dropped.
  void SetBytes(AttemptId id, std::uint64_t bytes) {
    Set([&] {
      usage_.disk_bytes += bytes - sizes_[id];
      sizes_[id] = bytes;
    });
  }
  void SetFreedAtOnce(std::uint64_t percent) {
    Set([&] { frees_ = percent; });
  }
  void SetCapacity(std::uint64_t bytes) {
    Set([&] { usage_.disk_capacity_bytes = bytes; });
  }

  // --- Store
  Result<std::vector<std::string>> ListRuns() override {
    return Get([&] {
      std::set<std::string> names;
      for (const auto& [id, attempt] : attempts_) names.insert(attempt.run);
      return std::vector<std::string>(names.begin(), names.end());
    });
  }
  Result<std::vector<AttemptMeta>> Attempts(const std::string& run) override {
    return Get([&] {
      std::vector<AttemptMeta> found;
      for (const auto& [id, attempt] : attempts_) {
        if (attempt.run == run) found.push_back(attempt);
      }
      return found;
    });
  }
  Result<AttemptMeta> CreateAttempt(const AttemptMeta& wanted) override {
    std::lock_guard lock(mutex_);
    AttemptMeta made = wanted;
    made.id = next_id_++;
    made.number = std::max(wanted.number, std::uint32_t{1});
    for (const auto& [id, attempt] : attempts_) {
      if (attempt.run == wanted.run) made.number = std::max(made.number, attempt.number + 1);
    }
    attempts_[made.id] = made;
    return made;
  }
  Status RetireAttempts(std::span<const AttemptId> ids) override {
    std::lock_guard lock(mutex_);
    for (const AttemptId id : ids) {
      if (const auto it = attempts_.find(id); it != attempts_.end()) {
        retired_.push_back(id);
        const std::string run = it->second.run;
        attempts_.erase(it);
        const auto same = [&](const auto& entry) { return entry.second.run == run; };
        if (std::none_of(attempts_.begin(), attempts_.end(), same)) kept_.erase(run);
      }
    }
    usage_.retired_attempts = retired_.size();
    return Status::Ok();
  }
  Status PurgeRetired(const std::function<bool()>& stopped) override {
    std::unique_lock lock(mutex_);
    ++purges_;
    changed_.notify_all();
    while (purge_blocked_) {
      lock.unlock();
      if (stopped()) return {Code::kCancelled, "stopped"};
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      lock.lock();
    }
    if (!purge_failure_.ok()) return purge_failure_;
    for (const AttemptId id : retired_) {
      usage_.disk_bytes -= std::min(usage_.disk_bytes, frees_ * sizes_[id] / 100);
      data_.erase(data_.lower_bound({id, 0}), data_.lower_bound({id + 1, 0}));
      own_events_.erase(own_events_.lower_bound({id, 0}), own_events_.lower_bound({id + 1, 0}));
    }
    retired_.clear();
    usage_.retired_attempts = 0;
    return Status::Ok();
  }
  Result<std::map<std::uint32_t, RankMeta>> Ranks(AttemptId attempt) override {
    return Get([&] {
      ++ranks_calls_[attempt];
      std::map<std::uint32_t, RankMeta> ranks;
      for (auto it = data_.lower_bound({attempt, 0});
           it != data_.end() && it->first.first == attempt; ++it) {
        ranks[it->first.second] = it->second.meta;
      }
      return ranks;
    });
  }
  Status PutRank(AttemptId attempt, std::uint32_t rank, const RankMeta& meta) override {
    std::lock_guard lock(mutex_);
    if (!attempts_.contains(attempt)) Violate("PutRank of an unknown attempt");
    data_[{attempt, rank}].meta = meta;
    return Status::Ok();
  }
  Result<std::vector<AttemptTally>> Census() override {
    return Get([&] {
      std::vector<AttemptTally> tallies;
      for (const auto& [id, attempt] : attempts_) {
        AttemptTally tally{.meta = attempt, .finished = true, .kept = kept_.contains(attempt.run)};
        tally.last_write_unix_nanos = attempt.start_unix_nanos;
        if (const auto size = sizes_.find(id); size != sizes_.end()) tally.bytes = size->second;
        for (auto it = data_.lower_bound({id, 0}); it != data_.end() && it->first.first == id;
             ++it) {
          const RankMeta& rank = it->second.meta;
          ++tally.ranks;
          tally.records += rank.records;
          for (const auto& [cause, count] : rank.dropped) tally.dropped[cause] += count;
          tally.last_write_unix_nanos =
              std::max(tally.last_write_unix_nanos, rank.last_write_unix_nanos);
          tally.finished = tally.finished && rank.finished;
        }
        tally.finished = tally.finished && tally.ranks >= attempt.world_size;
        tallies.push_back(std::move(tally));
      }
      std::stable_sort(tallies.begin(), tallies.end(),
                       [](const auto& a, const auto& b) { return a.meta.run < b.meta.run; });
      return tallies;
    });
  }
  Status PutDocument(const std::string& run, const std::string& name,
                     const std::optional<std::string>& content) override {
    std::lock_guard lock(mutex_);
    const auto same = [&](const auto& entry) { return entry.second.run == run; };
    if (std::none_of(attempts_.begin(), attempts_.end(), same))
      return {Code::kNotFound, "no run '" + run + "'"};
    documents_.erase({run, name});
    if (content) documents_[{run, name}] = *content;
    return Status::Ok();
  }
  Result<std::optional<std::string>> Document(const std::string& run,
                                              const std::string& name) override {
    std::lock_guard lock(mutex_);
    const auto found = documents_.find({run, name});
    return found == documents_.end() ? std::optional<std::string>() : std::optional(found->second);
  }
  Status KeepRun(const std::string& run, bool keep) override {
    std::lock_guard lock(mutex_);
    const auto same = [&](const auto& entry) { return entry.second.run == run; };
    if (std::none_of(attempts_.begin(), attempts_.end(), same))
      return {Code::kNotFound, "no run '" + run + "'"};
    if (keep) {
      kept_.insert(run);
    } else {
      kept_.erase(run);
    }
    return Status::Ok();
  }
  Result<SharedDefinitions> Definitions(AttemptId attempt, std::uint32_t rank) override {
    return Get([&] {
      const auto& of = data_[{attempt, rank}];
      return std::make_shared<const RankDefinitions>(
          RankDefinitions{Values(of.activations), Values(of.layouts)});
    });
  }

  std::unique_ptr<StreamWriter> NewWriter(AttemptId, std::uint32_t) override {
    return std::make_unique<Writer>();
  }

  Status Append(std::span<const AppendItem> items) override {
    std::unique_lock lock(mutex_);
    ++inside_;
    changed_.notify_all();
    changed_.wait(lock, [this] { return !blocked_; });
    --inside_;
    appends_.push_back(items.size());
    if (!append_failure_.ok()) return failed_ = append_failure_;
    for (const AppendItem& item : items) AppendOne(item);
    return Status::Ok();
  }

  // A want of space passes, once FailAppends has ended it; any other failure is for good.
  Status Recover() override {
    std::lock_guard lock(mutex_);
    if (failed_.code() == Code::kResourceExhausted && append_failure_.ok()) failed_ = Status::Ok();
    return failed_;
  }

  std::unique_ptr<StatScan> ScanStats(AttemptId attempt, std::uint32_t rank,
                                      StepBounds steps) override {
    std::lock_guard lock(mutex_);
    auto scan = std::make_unique<FakeScan>([this] { CountRead(); });
    for (const RecordBatch& batch : data_[{attempt, rank}].batches) {
      for (std::size_t i = 0; i < batch.stats.size(); ++i) {
        if (batch.stats.step[i] >= steps.first && batch.stats.step[i] <= steps.last)
          scan->Add(batch.stats, i);
      }
    }
    return scan;
  }
  Status VisitSeries(AttemptId attempt, std::uint32_t rank, std::uint32_t activation,
                     StepBounds steps, const Visitor<StatPoint>& visitor) override {
    const auto scan = ScanStats(attempt, rank, steps);
    while (scan->Next()) {
      const StatColumns& columns = scan->block().columns;
      STATCOLLECT_RETURN_IF_ERROR(visitor.Read(sizeof(StatPoint)));
      for (std::size_t i = 0; i < columns.size(); ++i) {
        if (columns.activation[i] != activation) continue;
        STATCOLLECT_RETURN_IF_ERROR(visitor.take({.step = columns.step[i],
                                                  .layout = columns.layout[i],
                                                  .order = columns.order[i],
                                                  .stats = columns.stats[i]}));
      }
    }
    return scan->status();
  }
  Status VisitStatSteps(AttemptId attempt, std::uint32_t rank, StepBounds bounds,
                        const Visitor<std::uint64_t>& visitor) override {
    const auto steps = Get([&] {
      std::set<std::uint64_t> found;
      for (const RecordBatch& batch : data_[{attempt, rank}].batches) {
        for (const std::uint64_t step : batch.stats.step) {
          if (step >= bounds.first && step <= bounds.last) found.insert(step);
        }
      }
      return found;
    });
    return VisitAll(std::vector<std::uint64_t>(steps.begin(), steps.end()), visitor);
  }
  Status VisitRecords(AttemptId attempt, std::uint32_t rank, StepBounds steps,
                      RecordVisitor visitor) override {
    return std::visit([&](const auto* kind) { return VisitKind(attempt, rank, steps, *kind); },
                      visitor);
  }
  Status PutEvents(AttemptId attempt, std::span<const CollectorEvent> events) override {
    std::lock_guard lock(mutex_);
    if (!attempts_.contains(attempt)) return {Code::kNotFound, "no such attempt"};
    if (!append_failure_.ok()) return append_failure_;
    for (const CollectorEvent& own : events) {
      EventRecord& event = own_events_[{attempt, own.rank}][{own.event.step, own.number}] =
          own.event;
      event.from_collector = true;
    }
    return Status::Ok();
  }
  Result<std::string> CaptureChunkAt(AttemptId attempt, std::uint32_t rank, std::uint64_t step,
                                     std::uint32_t activation, std::uint32_t offset) override {
    std::lock_guard lock(mutex_);
    const auto& captures = data_[{attempt, rank}].captures;
    const auto found = captures.find({step, activation, offset});
    if (found == captures.end()) return Status(Code::kNotFound, "no such chunk");
    return found->second.data;
  }
  Result<StoreUsage> Usage() override {
    return Get([&] {
      ++usage_calls_;
      return usage_;
    });
  }
  bool fsync() const override { return true; }
  Result<CheckpointReport> Checkpoint(const std::string& directory) override {
    return Status(Code::kUnimplemented, "checkpoint to '" + directory + "' of a store in memory");
  }

 private:
  Status VisitKind(AttemptId attempt, std::uint32_t rank, StepBounds steps,
                   const Visitor<ScalarRecord>& visitor) {
    return VisitAll(Collect<ScalarRecord>(attempt, rank, steps, &RecordBatch::scalars), visitor);
  }
  Status VisitKind(AttemptId attempt, std::uint32_t rank, StepBounds steps,
                   const Visitor<StepRecord>& visitor) {
    return VisitAll(Collect<StepRecord>(attempt, rank, steps, &RecordBatch::steps), visitor);
  }
  Status VisitKind(AttemptId attempt, std::uint32_t rank, StepBounds steps,
                   const Visitor<MemoryRecord>& visitor) {
    return VisitAll(Collect<MemoryRecord>(attempt, rank, steps, &RecordBatch::memory), visitor);
  }
  Status VisitKind(AttemptId attempt, std::uint32_t rank, StepBounds steps,
                   const Visitor<DensityRecord>& visitor) {
    return VisitAll(Collect<DensityRecord>(attempt, rank, steps, &RecordBatch::densities), visitor);
  }
  Status VisitKind(AttemptId attempt, std::uint32_t rank, StepBounds steps,
                   const Visitor<ExponentRecord>& visitor) {
    return VisitAll(Collect<ExponentRecord>(attempt, rank, steps, &RecordBatch::exponents),
                    visitor);
  }
  Status VisitKind(AttemptId attempt, std::uint32_t rank, StepBounds steps,
                   const Visitor<TokenRecord>& visitor) {
    return VisitAll(Collect<TokenRecord>(attempt, rank, steps, &RecordBatch::tokens), visitor);
  }
  Status VisitKind(AttemptId attempt, std::uint32_t rank, StepBounds steps,
                   const Visitor<EventRecord>& visitor) {
    auto events = Collect<EventRecord>(attempt, rank, steps, &RecordBatch::events);
    {
      std::lock_guard lock(mutex_);
      for (const auto& [key, event] : own_events_[{attempt, rank}]) {
        if (event.step >= steps.first && event.step <= steps.last) events.push_back(event);
      }
    }
    std::stable_sort(events.begin(), events.end(),
                     [](const auto& a, const auto& b) { return a.step < b.step; });
    return VisitAll(std::move(events), visitor);
  }
  Status VisitKind(AttemptId attempt, std::uint32_t rank, StepBounds steps,
                   const Visitor<StoredCapture>& visitor) {
    return VisitAll(Get([&] {
                      std::vector<StoredCapture> captures;
                      for (const auto& [place, chunk] : data_[{attempt, rank}].captures) {
                        const auto& [step, activation, offset] = place;
                        if (step < steps.first || step > steps.last) continue;
                        if (captures.empty() || captures.back().step != step ||
                            captures.back().activation != activation) {
                          captures.push_back({.step = step,
                                              .activation = activation,
                                              .layout = chunk.layout,
                                              .elements = chunk.elements});
                        }
                        if (captures.back().bytes_stored == offset)
                          captures.back().bytes_stored += chunk.data.size();
                      }
                      return captures;
                    }),
                    visitor);
  }

  class Prepared final : public PreparedBatch {
   public:
    RecordBatch batch;
  };
  class Writer final : public StreamWriter {
   public:
    std::unique_ptr<PreparedBatch> Prepare(const RecordBatch& batch) override {
      auto prepared = std::make_unique<Prepared>();
      prepared->batch = batch;
      return prepared;
    }
  };
  static const RecordBatch& BatchOf(const AppendItem& item) {
    static const RecordBatch none;
    return item.prepared != nullptr ? static_cast<const Prepared&>(*item.prepared).batch : none;
  }

  using AttemptRank = std::pair<AttemptId, std::uint32_t>;
  struct RankData {
    RankMeta meta;
    std::map<std::uint32_t, TensorDef> activations;
    std::map<std::uint32_t, Layout> layouts;
    std::vector<RecordBatch> batches;
    std::set<std::pair<std::uint64_t, std::uint32_t>> observed;  // step, activation
    std::map<std::tuple<std::uint64_t, std::uint32_t, std::uint32_t>, CaptureChunk>
        captures;  // step, activation, offset
  };

  template <typename F>
  std::invoke_result_t<F> Get(F&& f) const {
    std::lock_guard lock(mutex_);
    return f();
  }
  template <typename F>
  void Set(F&& f) {
    std::lock_guard lock(mutex_);
    f();
    changed_.notify_all();
  }
  template <typename Map>
  static std::vector<typename Map::mapped_type> Values(const Map& map) {
    std::vector<typename Map::mapped_type> values;
    for (const auto& [key, value] : map) values.push_back(value);
    return values;
  }
  void Violate(const std::string& what) {
    if (violation_.empty()) violation_ = what;
  }

  void AppendOne(const AppendItem& item) {
    const AttemptRank place{item.attempt, item.rank};
    if (!attempts_.contains(item.attempt)) return Violate("Append to a dropped attempt");
    RankData& data = data_[place];
    const RecordBatch& batch = BatchOf(item);
    if (batch.records() > 0 && batch.first_seq != data.meta.durable_seq + 1)
      Violate("Append with a gap or an overlap");
    for (const TensorDef& def : batch.activations) data.activations[def.id] = def;
    for (const Layout& layout : batch.layouts) data.layouts[layout.id] = layout;
    for (std::size_t i = 0; i < batch.stats.size(); ++i) {
      if (!data.observed.insert({batch.stats.step[i], batch.stats.activation[i]}).second)
        Violate("observed twice");
      if (!data.activations.contains(batch.stats.activation[i])) Violate("undefined activation");
      if (!data.layouts.contains(batch.stats.layout[i])) Violate("undefined layout");
    }
    for (const CaptureChunk& chunk : batch.captures) {
      if (!data.activations.contains(chunk.activation))
        Violate("capture of an undefined activation");
      if (!data.layouts.contains(chunk.layout)) Violate("capture with an undefined layout");
      data.captures[{chunk.step, chunk.activation, chunk.offset}] = chunk;
    }
    for (const ExponentRecord& record : batch.exponents) {
      if (!data.activations.contains(record.activation))
        Violate("exponents of an undefined activation");
      if (!data.layouts.contains(record.layout)) Violate("exponents with an undefined layout");
    }
    auto config = std::move(data.meta.info.config);
    data.meta = *item.meta;
    if (data.meta.info.config.empty()) data.meta.info.config = std::move(config);  // PutRank's
    for (const SettingRecord& setting : batch.settings)
      data.meta.info.config[setting.name] = setting.value;
    if (batch.records() > 0) data.batches.push_back(batch);
  }

  template <typename T>
  std::vector<T> Collect(AttemptId attempt, std::uint32_t rank, StepBounds steps,
                         std::vector<T> RecordBatch::*field) {
    return Get([&] {
      std::vector<T> found;
      for (const RecordBatch& batch : data_[{attempt, rank}].batches) {
        for (const T& record : batch.*field) {
          if (record.step >= steps.first && record.step <= steps.last) found.push_back(record);
        }
      }
      std::stable_sort(found.begin(), found.end(),
                       [](const T& a, const T& b) { return a.step < b.step; });
      return found;
    });
  }

  // Without the lock: a visitor may call back.
  template <typename T>
  Status VisitAll(std::vector<T> records, const Visitor<T>& visitor) {
    for (T& record : records) {
      CountRead();
      STATCOLLECT_RETURN_IF_ERROR(visitor.Read(sizeof(T)));
      STATCOLLECT_RETURN_IF_ERROR(visitor.take(std::move(record)));
    }
    return Status::Ok();
  }

  void CountRead() {
    const std::uint64_t reads = ++reads_;
    if (on_read_) on_read_(reads);
  }

  std::atomic<std::uint64_t> reads_{0};
  std::function<void(std::uint64_t)> on_read_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::map<AttemptId, AttemptMeta> attempts_;
  std::map<AttemptRank, RankData> data_;
  AttemptId next_id_ = 1;
  StoreUsage usage_{.disk_bytes = 0, .disk_free_bytes = std::uint64_t{1} << 40};
  std::map<AttemptRank, std::map<std::pair<std::uint64_t, std::uint64_t>, EventRecord>> own_events_;
  std::map<AttemptId, std::uint64_t> sizes_;
  std::uint64_t frees_ = 100;  // percent of a dropped attempt's bytes
  std::set<std::string> kept_;
  std::map<std::pair<std::string, std::string>, std::string> documents_;  // by run and name
  Status append_failure_, failed_;
  bool blocked_ = false, purge_blocked_ = false;
  int inside_ = 0, purges_ = 0;
  Status purge_failure_;
  std::vector<AttemptId> retired_;
  mutable int usage_calls_ = 0;
  mutable std::map<AttemptId, int> ranks_calls_;
  std::vector<std::size_t> appends_;
  std::string violation_;
};

}  // namespace statcollect::testing

#endif  // STATCOLLECT_TESTS_SUPPORT_FAKE_STORE_H_
