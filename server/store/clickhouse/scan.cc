#include "server/store/clickhouse/scan.h"

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "server/store/clickhouse/key_frames.h"
#include "server/store/clickhouse/pages.h"
#include "server/store/codec/stat_encoder.h"

namespace statcollect {
namespace {

constexpr std::size_t kHeadsPerPage = 2048;                // of the first page
constexpr std::size_t kSeriesPage = 64;                    // blocks
constexpr std::size_t kWindowFirst = 4, kWindowMax = 256;  // blocks
constexpr std::size_t kStepsPerPage = 65536;

class ClickHouseScan final : public StatScan {
 public:
  ClickHouseScan(Engine& engine, AttemptTable& attempts, AttemptId attempt, std::uint32_t rank,
                 StepBounds steps)
      : engine_(engine),
        attempts_(attempts),
        attempt_(attempt),
        rank_(rank),
        heads_(engine, attempts, "statistics",
               {.attempt = attempt, .rank = rank, .family = RowFamily::kBlock, .steps = steps},
               /*with_values=*/false, kHeadsPerPage),
        frames_(engine) {}

  bool NextHead() override {
    if (!status_.ok()) return false;
    ++at_;
    ++seen_;
    if (at_ >= heads_.rows().size()) {
      const auto more = heads_.Next();
      status_ = more.status();
      at_ = 0;
      window_.clear();
      if (!more.ok() || !*more) return false;
    }
    const StoredRow& row = heads_.rows()[at_];
    bytes_read_ += sizeof(StoredRow);
    head_ = {.step = row.step,
             .activation = static_cast<std::uint32_t>(row.item),
             .records = row.records,
             .digest = row.digest};
    return true;
  }
  const BlockHead& head() const override { return head_; }
  bool Load(bool sketches, StatColumns* columns) override {
    if (status_.ok()) status_ = LoadInto(sketches, columns);
    return status_.ok();
  }
  bool LoadHashes(HashColumns* columns) override {
    const BlockColumns* frame = nullptr;
    if (status_.ok()) status_ = OpenBlockAtHand(/*sums=*/false, &frame);
    if (status_.ok()) status_ = window_[at_ - window_begin_].reader.ReadHashes(frame, &block_);
    if (status_.ok()) block_.CopyHashesTo(columns);
    return status_.ok();
  }
  const Status& status() const override { return status_; }
  std::uint64_t bytes_read() const override { return bytes_read_ + frames_.bytes_read(); }

 private:
  // Reads it into the window. `frame`: its key frame; null if it has none.
  Status OpenBlockAtHand(bool sums, const BlockColumns** frame) {
    const bool there = at_ >= window_begin_ && at_ < window_begin_ + window_.size();
    if (!there || (sums && !window_sums_)) STATCOLLECT_RETURN_IF_ERROR(ReadWindow(sums));
    const OpenBlock& block = window_[at_ - window_begin_];
    if (block.reader.digest() != head_.digest || block.reader.size() != head_.records) {
      return {Code::kDataLoss,
              "read block of " + Describe(block.key) +
                  ": found other content than its row names; the store is damaged"};
    }
    if (block.reader.kind() != BlockReader::Kind::kRelative) return Status::Ok();
    STATCOLLECT_ASSIGN_OR_RETURN(*frame, frames_.FrameOf(block, window_sums_));
    return Status::Ok();
  }

  Status LoadInto(bool sketches, StatColumns* columns) {
    const BlockColumns* frame = nullptr;
    STATCOLLECT_RETURN_IF_ERROR(OpenBlockAtHand(sketches, &frame));
    const OpenBlock& block = window_[at_ - window_begin_];
    STATCOLLECT_RETURN_IF_ERROR(block.reader.ReadNumbers(frame, &block_));
    if (sketches)
      STATCOLLECT_RETURN_IF_ERROR(block.reader.ReadSums(block.bytes.sums, frame, &block_));
    block_.MoveTo(head_.step, sketches, columns);
    return Status::Ok();
  }

  // The values of this block and the next ones. Grows while blocks are loaded one after the other.
  Status ReadWindow(bool sums) {
    window_size_ = seen_ == window_follows_ ? std::min(2 * window_size_, kWindowMax) : kWindowFirst;
    const auto& rows = heads_.rows();
    const std::size_t end = std::min(at_ + window_size_, rows.size());
    window_follows_ = seen_ + (end - at_);
    window_.clear();
    std::string list;
    for (std::size_t i = at_; i < end; ++i)
      list += (i == at_ ? "(" : ", (") + std::to_string(rows[i].step) + ", " +
              std::to_string(rows[i].item) + ")";
    STATCOLLECT_ASSIGN_OR_RETURN(
        body_, engine_.Select("read statistics",
                              BlocksQuery(engine_, attempt_, rank_, sums) +
                                  SqlSteps({.first = rows[at_].step, .last = rows[end - 1].step}) +
                                  " AND (step, item) IN (" + list + ")"));
    bytes_read_ += body_.size();
    STATCOLLECT_ASSIGN_OR_RETURN(const auto found,
                                 ParseBlocks(engine_, "read statistics", body_, heads_.chain()));
    for (std::size_t i = at_; i < end; ++i) STATCOLLECT_RETURN_IF_ERROR(OpenRow(rows[i], found));
    window_begin_ = at_;
    window_sums_ = sums;
    return frames_.Prepare(window_, heads_.chain(), sums);
  }

  Status OpenRow(const StoredRow& row,
                 const std::map<std::pair<std::uint64_t, std::uint64_t>, BlockBytes>& found) {
    const StatKey key{.attempt = attempt_,
                      .rank = rank_,
                      .step = row.step,
                      .activation = static_cast<std::uint32_t>(row.item)};
    const auto bytes = found.find({row.step, row.item});
    if (bytes == found.end()) {
      STATCOLLECT_RETURN_IF_ERROR(attempts_.CheckStillThere("read statistics", attempt_));
      return {Code::kDataLoss,
              "read block of " + Describe(key) + ": its value is missing; the store is damaged"};
    }
    STATCOLLECT_ASSIGN_OR_RETURN(auto reader, BlockReader::Open(key, bytes->second.stats));
    window_.push_back({.key = key, .reader = reader, .bytes = bytes->second});
    return Status::Ok();
  }

  Engine& engine_;
  AttemptTable& attempts_;
  const AttemptId attempt_;
  const std::uint32_t rank_;
  RowPages heads_;
  std::size_t at_ = static_cast<std::size_t>(-1);  // in the page
  std::uint64_t seen_ = 0, window_follows_ = 0;    // heads; the one behind the window
  BlockHead head_;
  KeyFrames frames_;
  std::size_t window_size_ = kWindowFirst, window_begin_ = 0;
  bool window_sums_ = false;
  std::string body_;               // of the window
  std::vector<OpenBlock> window_;  // blocks of the page from window_begin_ on
  BlockColumns block_;
  Status status_;
  std::uint64_t bytes_read_ = 0;
};

// The blocks that may have the activation: of its group, not beginning above it.
class ClickHouseSeries {
 public:
  ClickHouseSeries(Engine& engine, AttemptTable& attempts, AttemptId attempt, std::uint32_t rank,
                   std::uint32_t activation, StepBounds steps, const Visitor<StatPoint>& visitor)
      : attempt_(attempt),
        rank_(rank),
        activation_(activation),
        visitor_(visitor),
        pages_(engine, attempts, "a series",
               {.attempt = attempt,
                .rank = rank,
                .family = RowFamily::kBlock,
                .steps = steps,
                .first_item = activation >> kActivationsShift << kActivationsShift,
                .last_item = activation},
               /*with_values=*/true, kSeriesPage),
        frames_(engine) {}

  Status Run() {
    for (;;) {
      STATCOLLECT_ASSIGN_OR_RETURN(const auto more, pages_.Next());
      if (!more) return Status::Ok();
      STATCOLLECT_RETURN_IF_ERROR(TakePage());
    }
  }

 private:
  Status TakePage() {
    std::vector<OpenBlock> blocks;
    for (const StoredRow& row : pages_.rows()) {
      const StatKey key{.attempt = attempt_,
                        .rank = rank_,
                        .step = row.step,
                        .activation = static_cast<std::uint32_t>(row.item)};
      STATCOLLECT_ASSIGN_OR_RETURN(auto reader, BlockReader::Open(key, row.value));
      blocks.push_back({.key = key, .reader = reader, .bytes = {.stats = row.value, .sums = {}}});
    }
    STATCOLLECT_RETURN_IF_ERROR(frames_.Prepare(blocks, pages_.chain(), /*sums=*/false));
    for (const OpenBlock& block : blocks) {
      STATCOLLECT_RETURN_IF_ERROR(visitor_.Read(block.bytes.stats.size()));
      STATCOLLECT_ASSIGN_OR_RETURN(const auto record, Find(block));
      if (!record) continue;
      STATCOLLECT_RETURN_IF_ERROR(visitor_.take(PointOf(block.key.step, *record)));
    }
    return Status::Ok();
  }

  Result<std::optional<ColumnRecord>> Find(const OpenBlock& block) {
    if (block.reader.kind() != BlockReader::Kind::kRelative) {
      const auto place = block.reader.Find(activation_);
      return place ? std::optional(block.reader.ReadRecord(*place, nullptr))
                   : std::optional<ColumnRecord>();
    }
    STATCOLLECT_ASSIGN_OR_RETURN(const auto frame, frames_.FrameOf(block, /*sums=*/false));
    const auto activations = frame->of(kActivation);
    const auto place = std::find(activations.begin(), activations.end(), activation_);
    if (place == activations.end()) return std::optional<ColumnRecord>();
    const auto index = static_cast<std::size_t>(place - activations.begin());
    if (frame->size() != block.reader.size()) {
      return Status(Code::kDataLoss,
                    "read block of " + Describe(block.key) +
                        ": its key frame has a different size; the store is damaged");
    }
    const ColumnRecord at_frame = frame->Record(index);
    return std::optional(block.reader.ReadRecord(index, &at_frame));
  }

  const AttemptId attempt_;
  const std::uint32_t rank_, activation_;
  const Visitor<StatPoint>& visitor_;
  RowPages pages_;
  KeyFrames frames_;
};

}  // namespace

std::unique_ptr<StatScan> ScanClickHouseBlocks(Engine& engine, AttemptTable& attempts,
                                               AttemptId attempt, std::uint32_t rank,
                                               StepBounds steps) {
  return std::make_unique<ClickHouseScan>(engine, attempts, attempt, rank, steps);
}

Status VisitClickHouseSeries(Engine& engine, AttemptTable& attempts, AttemptId attempt,
                             std::uint32_t rank, std::uint32_t activation, StepBounds steps,
                             const Visitor<StatPoint>& visitor) {
  return ClickHouseSeries(engine, attempts, attempt, rank, activation, steps, visitor).Run();
}

Status VisitClickHouseSteps(Engine& engine, AttemptId attempt, std::uint32_t rank, StepBounds steps,
                            const Visitor<std::uint64_t>& visitor) {
  const std::string attempted = "list steps";
  for (StepBounds bounds = steps;;) {
    STATCOLLECT_ASSIGN_OR_RETURN(
        const auto answer,
        engine.Select(attempted, "SELECT step, epoch, min(seq) AS lowest FROM " +
                                     TableName(engine, "records") + " WHERE " +
                                     SqlPlace(attempt, RowFamily::kBlock, rank) + SqlSteps(bounds) +
                                     " GROUP BY step, epoch ORDER BY step, epoch LIMIT " +
                                     std::to_string(kStepsPerPage)));
    if (answer.empty()) return Status::Ok();
    STATCOLLECT_ASSIGN_OR_RETURN(const auto chain, ReadChain(engine, attempt, rank));
    ByteReader in(answer);
    std::size_t rows = 0;
    std::optional<std::uint64_t> taken;
    std::uint64_t last = 0;
    while (in.ok() && in.remaining() > 0) {
      const std::uint64_t step = in.U64(), epoch = in.U64(), seq = in.U64();
      ++rows;
      last = step;
      if (taken == step || !chain.Counts(epoch, seq)) continue;
      // The last step of a full page is taken with the next one.
      if (rows == kStepsPerPage) break;
      STATCOLLECT_RETURN_IF_ERROR(visitor.Read(sizeof(step)));
      STATCOLLECT_RETURN_IF_ERROR(visitor.take(step));
      taken = step;
    }
    if (!in.ok()) return BadAnswer(engine, attempted);
    if (rows < kStepsPerPage) return Status::Ok();
    if (last == taken && last == bounds.last) return Status::Ok();
    bounds.first = last == taken ? last + 1 : last;
  }
}

}  // namespace statcollect
