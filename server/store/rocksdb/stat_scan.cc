#include "server/store/rocksdb/stat_scan.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <utility>

#include "server/store/codec/stat_encoder.h"
#include "server/store/rocksdb/block_source.h"

namespace statcollect {
namespace {

constexpr std::uint64_t kLastStep = ~std::uint64_t{0};
constexpr std::size_t kReadAtOnce = 32;  // what RocksDB handles as one batch

Status ForeignKey(std::size_t bytes) {
  return {Code::kDataLoss,
          "scan statistics: found a key of " + std::to_string(bytes) + " bytes; expected 20"};
}

class BlockScan final : public StatScan {
 public:
  BlockScan(rocksdb::DB& db, const StatFamilies& families, AttemptId attempt, std::uint32_t rank,
            StepBounds steps)
      : range_(RankRange(attempt, rank, steps)),
        it_(Iterate(db, families.stats, range_, /*scan=*/true)),
        source_(db, families) {}

  bool NextHead() override {
    if (!status_.ok()) return false;
    if (started_) it_->Next();
    started_ = true;
    if (!it_->Valid()) {
      status_ = FromRocks("scan statistics", it_->status());
      return false;
    }
    status_ = ReadHead();
    return status_.ok();
  }
  const BlockHead& head() const override { return head_; }
  bool Load(bool sketches, StatColumns* columns) override {
    if (!status_.ok()) return false;
    status_ =
        source_.Read(key_, reader_, sketches ? BlockParts::kAll : BlockParts::kNumbers, &columns_);
    if (status_.ok()) columns_.MoveTo(key_.step, sketches, columns);
    return status_.ok();
  }
  bool LoadHashes(HashColumns* columns) override {
    if (!status_.ok()) return false;
    status_ = source_.Read(key_, reader_, BlockParts::kHashes, &columns_);
    if (status_.ok()) columns_.CopyHashesTo(columns);
    return status_.ok();
  }
  const NumberColumns* Columns() override { return ReadColumns(BlockParts::kCompared); }
  const NumberColumns* Numbers(NumberSet wanted) override {
    return ReadColumns(wanted == NumberSet::kNorms ? BlockParts::kNorms : BlockParts::kNumbers);
  }
  const Status& status() const override { return status_; }
  std::uint64_t bytes_read() const override { return bytes_read_ + source_.bytes_read(); }

 private:
  const NumberColumns* ReadColumns(BlockParts parts) {
    if (!status_.ok()) return nullptr;
    const auto columns = source_.ReadInPlace(key_, reader_, parts, &columns_);
    status_ = columns.status();
    if (!columns.ok()) return nullptr;
    view_ = (*columns)->View();
    return &view_;
  }

  Status ReadHead() {
    bytes_read_ += it_->value().size();
    const auto key = DecodeStatKey(View(it_->key()));
    if (!key) return ForeignKey(it_->key().size());
    key_ = *key;
    STATCOLLECT_ASSIGN_OR_RETURN(reader_, BlockReader::Open(key_, View(it_->value())));
    head_ = {.step = key_.step,
             .activation = key_.activation,
             .records = reader_.size(),
             .digest = reader_.digest()};
    return Status::Ok();
  }

  KeyRange range_;
  std::unique_ptr<rocksdb::Iterator> it_;
  BlockSource source_;  // sees all that blocks of the iterator refer to, for it is younger
  bool started_ = false;
  StatKey key_;
  BlockReader reader_;  // on the iterator's value
  BlockHead head_;
  BlockColumns columns_;
  NumberColumns view_;
  Status status_;
  std::uint64_t bytes_read_ = 0;
};

// Walks from step to step. The block that an activation was in is nearly always where it is in the
// next step, so those of the next steps are read at once, more and more of them. Where it is not,
// the blocks of the activation's group are looked through.
class SeriesWalk {
 public:
  SeriesWalk(rocksdb::DB& db, const StatFamilies& families, AttemptId attempt, std::uint32_t rank,
             std::uint32_t activation, StepBounds steps, AskedBefore& asked_before,
             const Visitor<StatPoint>& visitor)
      : db_(db),
        families_(families),
        source_(db, families),
        range_(RankRange(attempt, rank, steps)),
        steps_(steps),
        activation_(activation),
        asked_before_(asked_before),
        visitor_(visitor),
        key_{.attempt = attempt, .rank = rank, .step = steps.first, .activation = activation} {}

  Status Run() {
    it_ = Iterate(db_, families_.stats, range_);
    while (it_->Valid()) {
      const auto at = DecodeStatKey(View(it_->key()));
      if (!at) return ForeignKey(it_->key().size());
      STATCOLLECT_RETURN_IF_ERROR(ReadStep(at->step));
      STATCOLLECT_ASSIGN_OR_RETURN(const auto last, ReadStepsAfter(at->step));
      if (last == kLastStep) break;
      it_->Seek(StepPrefix(key_.attempt, key_.rank, last + 1));
    }
    return FromRocks("read a series", it_->status());
  }

 private:
  // Steps that follow each other are read without the iterator. Returns the last one that is done.
  Result<std::uint64_t> ReadStepsAfter(std::uint64_t step) {
    const std::uint64_t end = std::min(steps_.last, kLastStep);
    DecideOnCache();
    for (std::size_t wanted = 1; step < end; wanted = std::min(2 * wanted, kReadAtOnce)) {
      const auto count = static_cast<std::size_t>(std::min<std::uint64_t>(wanted, end - step));
      Fetch(step + 1, count);
      for (std::size_t i = 0; i < count; ++i, ++step) {
        if (i + 1 < count) Prefetch(values_[i + 1]);
        STATCOLLECT_ASSIGN_OR_RETURN(const auto there, TakeFetched(step + 1, i));
        if (!there) return step;
      }
    }
    return step;
  }

  // Blocks that are asked for once are not put into the cache: the pages that they take there cost
  // as much as reading them, and a series of 8 ranks x 1,000 steps is more than half of it.
  void DecideOnCache() {
    if (cached_for_ == key_.activation) return;
    cached_for_ = key_.activation;
    read_options_.fill_cache = asked_before_(key_, steps_.first);
  }

  // The blocks of these steps that are where the last point was found.
  void Fetch(std::uint64_t first, std::size_t count) {
    std::array<rocksdb::Slice, kReadAtOnce> keys;
    for (std::size_t i = 0; i < count; ++i) {
      key_.step = first + i;
      keys_[i] = EncodeStatKey(key_);
      keys[i] = keys_[i];
      values_[i].Reset();
    }
    db_.MultiGet(read_options_, families_.stats, count, keys.data(), values_.data(), found_.data(),
                 /*sorted_input=*/true);
  }

  // Cached blocks of many steps are larger than the processor's caches, and a checksum waits for
  // each line of memory.
  static void Prefetch(const rocksdb::PinnableSlice& value) {
    constexpr std::size_t kLine = 64;
    for (std::size_t at = 0; at < value.size(); at += kLine) __builtin_prefetch(value.data() + at);
  }

  // False if the step has no such block, or it lacks the activation.
  Result<bool> TakeFetched(std::uint64_t step, std::size_t i) {
    STATCOLLECT_RETURN_IF_ERROR(visitor_.Read(values_[i].size()));
    if (found_[i].IsNotFound()) return false;
    STATCOLLECT_RETURN_IF_ERROR(FromRocks("read a series", found_[i]));
    key_.step = step;
    return Take(key_, View(values_[i]));
  }

  Result<bool> Take(const StatKey& key, std::string_view value) {
    STATCOLLECT_ASSIGN_OR_RETURN(auto record, source_.ReadRecord(key, value, activation_));
    if (!record) return false;
    STATCOLLECT_RETURN_IF_ERROR(visitor_.take(PointOf(key.step, *record)));
    return true;
  }

  // Tries the blocks of the activation's group whose lowest activation is not above it, the nearest
  // first.
  Status ReadStep(std::uint64_t step) {
    const std::uint32_t group = activation_ >> kActivationsShift << kActivationsShift;
    StatKey key = key_;
    key.step = step;
    key.activation = activation_;
    for (it_->SeekForPrev(EncodeStatKey(key)); it_->Valid(); it_->Prev()) {
      STATCOLLECT_RETURN_IF_ERROR(visitor_.Read(it_->value().size()));
      const auto at = DecodeStatKey(View(it_->key()));
      if (!at) return ForeignKey(it_->key().size());
      if (at->step != step || at->activation < group) break;
      STATCOLLECT_ASSIGN_OR_RETURN(auto taken, Take(*at, View(it_->value())));
      if (!taken) continue;
      key_.activation = at->activation;
      break;
    }
    return FromRocks("read a series", it_->status());
  }

  rocksdb::DB& db_;
  const StatFamilies families_;
  BlockSource source_;
  KeyRange range_;
  const StepBounds steps_;
  const std::uint32_t activation_;
  AskedBefore& asked_before_;
  const Visitor<StatPoint>& visitor_;
  StatKey key_;                        // its activation: that of the last block that had it
  rocksdb::ReadOptions read_options_;  // of the blocks that are read at once
  std::optional<std::uint32_t>
      cached_for_;  // the value of key_.activation for which they were decided on
  std::unique_ptr<rocksdb::Iterator> it_;
  std::array<std::string, kReadAtOnce> keys_;
  std::array<rocksdb::PinnableSlice, kReadAtOnce> values_;
  std::array<rocksdb::Status, kReadAtOnce> found_;
};

}  // namespace

std::unique_ptr<StatScan> ScanBlocks(rocksdb::DB& db, const StatFamilies& families,
                                     AttemptId attempt, std::uint32_t rank, StepBounds steps) {
  return std::make_unique<BlockScan>(db, families, attempt, rank, steps);
}

Status VisitSeries(rocksdb::DB& db, const StatFamilies& families, AttemptId attempt,
                   std::uint32_t rank, std::uint32_t activation, StepBounds steps,
                   AskedBefore& asked_before, const Visitor<StatPoint>& visitor) {
  return SeriesWalk(db, families, attempt, rank, activation, steps, asked_before, visitor).Run();
}

}  // namespace statcollect
