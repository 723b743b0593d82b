#include "server/transfer/rank_reader.h"

#include <algorithm>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "common/decoded_bytes.h"

namespace statcollect::transfer {
namespace {

constexpr std::size_t kBatchBytesMax = std::size_t{1} << 20;  // in memory, or more
constexpr std::size_t kBatchRecordsMax = 16'384;
// Of definitions that no record of the batch needs yet, so that none are left for the last one.
constexpr std::size_t kEarlyBytes = std::size_t{384} << 10;

class RankReader {
 public:
  RankReader(RecordReader& store, AttemptId attempt, std::uint32_t rank, const ReadFrom& from,
             const TakeBatch& take, const std::stop_token& stop)
      : store_(store), attempt_(attempt), rank_(rank), take_(take), stop_(stop), from_(from) {}

  Status Run();

 private:
  // Reads all records of one kind into the batch, and sends the batch whenever it is full.
  Status Read(StatColumns& into);
  Status Read(std::vector<CaptureChunk>& into);
  Status Read(std::vector<SettingRecord>&) { return Status::Ok(); }  // in the configuration
  template <typename Record>
  Status Read(std::vector<Record>& into);
  void AddBlock(const StatColumns& block, std::size_t first);
  // Sends the batch if it is full, so that the next record finds room, and something is left for
  // the end.
  Status MakeRoom();
  Status Send();
  template <typename Def>
  void Define(const std::vector<Def>& all, std::uint32_t needed, std::uint32_t* defined,
              std::vector<Def>* into);
  Status Stopped() const {
    return stop_.stop_requested() ? Status(Code::kCancelled, "copy: cancelled") : Status::Ok();
  }

  RecordReader& store_;
  const AttemptId attempt_;
  const std::uint32_t rank_;
  const TakeBatch& take_;
  const std::stop_token& stop_;
  ReadFrom from_;  // its definitions grow with what was sent
  SharedDefinitions definitions_;
  std::uint64_t position_ = 0;  // records before the one that is read next
  RecordBatch batch_;           // being filled
  std::size_t bytes_ = 0;
  std::uint32_t activations_needed_ = 0, layouts_needed_ = 0;  // by the batch: as many
};

Status RankReader::Run() {
  STATCOLLECT_ASSIGN_OR_RETURN(definitions_, store_.Definitions(attempt_, rank_));
  Status status;
  ForEachKind(batch_, [&](auto& records) {
    if (status.ok()) status = Read(records);
  });
  STATCOLLECT_RETURN_IF_ERROR(status);
  if (position_ < from_.records) {
    return {Code::kFailedPrecondition,
            "copy rank " + std::to_string(rank_) + ": the copy has " +
                std::to_string(from_.records) +
                " records; expected no more than the original, which has " +
                std::to_string(position_) + "; remove the copy (statctl rm) and start again"};
  }
  activations_needed_ = static_cast<std::uint32_t>(definitions_->activations.size());
  layouts_needed_ = static_cast<std::uint32_t>(definitions_->layouts.size());
  return batch_.records() > 0 ? Send() : Status::Ok();
}

Status RankReader::Read(StatColumns& into) {
  const auto scan = store_.ScanStats(attempt_, rank_, StepBounds());
  StatColumns block;
  while (scan->NextHead()) {
    STATCOLLECT_RETURN_IF_ERROR(Stopped());
    const std::uint64_t records = scan->head().records;
    if (position_ + records <= from_.records) {
      position_ += records;
      continue;
    }
    if (!scan->Load(/*sketches=*/true, &block)) return scan->status();
    const std::uint64_t had = std::max(position_, from_.records) - position_;
    if (!into.empty() && into.sketch_width != block.sketch_width)
      STATCOLLECT_RETURN_IF_ERROR(Send());
    STATCOLLECT_RETURN_IF_ERROR(MakeRoom());
    position_ += records;
    AddBlock(block, static_cast<std::size_t>(had));
  }
  return scan->status();
}

void RankReader::AddBlock(const StatColumns& block, std::size_t first) {
  StatColumns& out = batch_.stats;
  out.sketch_width = block.sketch_width;
  std::size_t sample = 0;
  for (std::size_t i = 0; i < block.size(); ++i) {
    const std::size_t samples = i < block.sample_count.size() ? block.sample_count[i] : 0;
    if (i >= first) {
      out.activation.push_back(block.activation[i]);
      out.layout.push_back(block.layout[i]);
      out.step.push_back(block.step[i]);
      out.order.push_back(block.order[i]);
      out.stats.push_back(block.stats[i]);
      const auto sketch = block.SketchOf(i);
      out.sketch.insert(out.sketch.end(), sketch.begin(), sketch.end());
      out.sample_count.push_back(static_cast<std::uint32_t>(samples));
      const auto begin = block.samples.begin() + static_cast<std::ptrdiff_t>(sample);
      out.samples.insert(out.samples.end(), begin, begin + static_cast<std::ptrdiff_t>(samples));
      activations_needed_ = std::max(activations_needed_, block.activation[i] + 1);
      layouts_needed_ = std::max(layouts_needed_, block.layout[i] + 1);
      bytes_ += 120 + 8 * (block.sketch_width + samples);
    }
    sample += samples;
  }
}

template <typename Record>
Status RankReader::Read(std::vector<Record>& into) {
  Visitor<Record> visitor;
  visitor.take = [&](Record record) {
    STATCOLLECT_RETURN_IF_ERROR(Stopped());
    if constexpr (std::is_same_v<Record, EventRecord>) {
      if (record.from_collector) return Status::Ok();
    }
    if (position_ < from_.records) {
      ++position_;
      return Status::Ok();
    }
    STATCOLLECT_RETURN_IF_ERROR(MakeRoom());
    ++position_;
    if constexpr (std::is_same_v<Record, ExponentRecord>) {
      activations_needed_ = std::max(activations_needed_, record.activation + 1);
      layouts_needed_ = std::max(layouts_needed_, record.layout + 1);
    }
    bytes_ += DecodedBytes(record);
    into.push_back(std::move(record));
    return Status::Ok();
  };
  return store_.Visit(attempt_, rank_, StepBounds(), visitor);
}

Status RankReader::Read(std::vector<CaptureChunk>& into) {
  std::vector<StoredCapture> all;  // without their values: not read under a scan
  Visitor<StoredCapture> visitor;
  visitor.take = [&](StoredCapture capture) {
    all.push_back(capture);
    return Stopped();
  };
  STATCOLLECT_RETURN_IF_ERROR(store_.Visit(attempt_, rank_, StepBounds(), visitor));
  for (const StoredCapture& capture : all) {
    std::uint64_t offset = 0;
    while (offset < capture.bytes_stored || (offset == 0 && capture.elements == 0)) {
      STATCOLLECT_RETURN_IF_ERROR(Stopped());
      STATCOLLECT_ASSIGN_OR_RETURN(
          auto data, store_.CaptureChunkAt(attempt_, rank_, capture.step, capture.activation,
                                           static_cast<std::uint32_t>(offset)));
      const std::size_t size = data.size();
      if (position_ >= from_.records) {
        STATCOLLECT_RETURN_IF_ERROR(MakeRoom());
        activations_needed_ = std::max(activations_needed_, capture.activation + 1);
        layouts_needed_ = std::max(layouts_needed_, capture.layout + 1);
        into.push_back({.step = capture.step,
                        .activation = capture.activation,
                        .layout = capture.layout,
                        .elements = capture.elements,
                        .offset = static_cast<std::uint32_t>(offset),
                        .data = std::move(data)});
        bytes_ += DecodedBytes(into.back());
      }
      ++position_;
      if (size == 0) break;
      offset += size;
    }
  }
  return Status::Ok();
}

Status RankReader::MakeRoom() {
  return bytes_ >= kBatchBytesMax || batch_.records() >= kBatchRecordsMax ? Send() : Status::Ok();
}

template <typename Def>
void RankReader::Define(const std::vector<Def>& all, std::uint32_t needed, std::uint32_t* defined,
                        std::vector<Def>* into) {
  std::size_t early = 0;
  while (*defined < all.size() && (*defined < needed || early < kEarlyBytes)) {
    const Def& def = all[*defined];
    if (*defined >= needed) early += DecodedBytes(def);
    into->push_back(def);
    ++*defined;
  }
}

Status RankReader::Send() {
  Define(definitions_->activations, activations_needed_, &from_.activations, &batch_.activations);
  Define(definitions_->layouts, layouts_needed_, &from_.layouts, &batch_.layouts);
  batch_.first_seq = position_ - batch_.records() + 1;
  const Status taken = take_(batch_, definitions_->layouts);
  batch_ = {};
  bytes_ = 0;
  return taken;
}

}  // namespace

Status ReadRank(RecordReader& store, AttemptId attempt, std::uint32_t rank, const ReadFrom& from,
                const TakeBatch& take, const std::stop_token& stop) {
  return RankReader(store, attempt, rank, from, take, stop).Run();
}

}  // namespace statcollect::transfer
