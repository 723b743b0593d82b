#include "server/store/clickhouse/key_frames.h"

#include <algorithm>
#include <set>

#include "server/store/clickhouse/schema.h"

namespace statcollect {
namespace {

constexpr std::size_t kFramesMax = 1024;

StatKey FrameKeyOf(const OpenBlock& block) {
  StatKey key = block.key;
  key.step -= block.reader.steps_back();  // wraps only if damaged: then nothing is there
  return key;
}

Status FrameMissing(const OpenBlock& block) {
  return {Code::kDataLoss,
          "read block of " + Describe(block.key) + ": its key frame, block of " +
              Describe(FrameKeyOf(block)) +
              ", is missing or does not stand alone; the store is damaged; restore " +
              "a backup of the engine or remove the run"};
}

}  // namespace

std::string BlocksQuery(const Engine& engine, AttemptId attempt, std::uint32_t rank, bool sums) {
  return "SELECT family, step, item, epoch, seq, value FROM " + TableName(engine, "records") +
         " WHERE attempt = " + std::to_string(attempt) + " AND family IN (" +
         SqlOf(RowFamily::kBlock) + (sums ? ", " + SqlOf(RowFamily::kSums) : "") +
         ") AND rank = " + std::to_string(rank);
}

Result<std::map<std::pair<std::uint64_t, std::uint64_t>, BlockBytes>> ParseBlocks(
    const Engine& engine, const std::string& attempted, std::string_view body, const Chain& chain) {
  struct Newest {
    std::uint64_t stats = 0, sums = 0;  // epochs
  };
  std::map<std::pair<std::uint64_t, std::uint64_t>, BlockBytes> blocks;
  std::map<std::pair<std::uint64_t, std::uint64_t>, Newest> newest;
  const auto take = [&](ByteReader& in) {
    const auto family = static_cast<RowFamily>(in.U8());
    const std::pair<std::uint64_t, std::uint64_t> place{in.U64(), in.U64()};
    const std::uint64_t epoch = in.U64(), seq = in.U64();
    const std::string_view value = in.Raw(in.Varint());
    if (!chain.Counts(epoch, seq)) return;
    BlockBytes& block = blocks[place];
    std::uint64_t& known = family == RowFamily::kSums ? newest[place].sums : newest[place].stats;
    if (epoch < known) return;
    known = epoch;
    if (family == RowFamily::kSums)
      block.sums = value;
    else
      block.stats = value;
  };
  STATCOLLECT_RETURN_IF_ERROR(ForEachRow(engine, attempted, body, take));
  return blocks;
}

bool KeyFrames::IsKept(const Place& place, bool sums) const {
  const auto kept = decoded_.find(place.second);
  return kept != decoded_.end() && kept->second.step == place.first && (kept->second.sums || !sums);
}

Status KeyFrames::Prepare(const std::vector<OpenBlock>& blocks, const Chain& chain, bool sums) {
  near_.clear();
  fetched_.clear();
  if (decoded_.size() >= kFramesMax)
    decoded_.clear();  // only here: what is kept for these blocks stays
  for (const OpenBlock& block : blocks) near_[{block.key.step, block.key.activation}] = block.bytes;
  std::set<Place> missing;
  for (const OpenBlock& block : blocks) {
    if (block.reader.kind() != BlockReader::Kind::kRelative) continue;
    const StatKey key = FrameKeyOf(block);
    const Place place(key.step, key.activation);
    if (!IsKept(place, sums) && !near_.contains(place)) missing.insert(place);
  }
  if (missing.empty()) return Status::Ok();
  const StatKey& of = blocks.front().key;
  std::string list;
  for (const auto& [step, item] : missing)
    list += (list.empty() ? "(" : ", (") + std::to_string(step) + ", " + std::to_string(item) + ")";
  const std::string attempted = "read key frames of rank " + std::to_string(of.rank);
  STATCOLLECT_ASSIGN_OR_RETURN(
      fetched_, engine_.Select(attempted, BlocksQuery(engine_, of.attempt, of.rank, sums) +
                                              SqlSteps({.first = missing.begin()->first,
                                                        .last = missing.rbegin()->first}) +
                                              " AND (step, item) IN (" + list + ")"));
  bytes_read_ += fetched_.size();
  STATCOLLECT_ASSIGN_OR_RETURN(auto found, ParseBlocks(engine_, attempted, fetched_, chain));
  near_.merge(found);
  return Status::Ok();
}

Result<const BlockColumns*> KeyFrames::FrameOf(const OpenBlock& block, bool sums) {
  const StatKey key = FrameKeyOf(block);
  const Place place(key.step, key.activation);
  if (!IsKept(place, sums)) {
    const auto bytes = near_.find(place);
    if (bytes == near_.end()) return FrameMissing(block);
    STATCOLLECT_ASSIGN_OR_RETURN(auto whole, BlockReader::Open(key, bytes->second.stats));
    if (whole.kind() != BlockReader::Kind::kWhole) return FrameMissing(block);
    Decoded frame{.step = key.step, .sums = sums, .block = {}};
    STATCOLLECT_RETURN_IF_ERROR(whole.ReadNumbers(nullptr, &frame.block));
    if (sums)
      STATCOLLECT_RETURN_IF_ERROR(whole.ReadSums(bytes->second.sums, nullptr, &frame.block));
    decoded_.insert_or_assign(place.second, std::move(frame));
  }
  return &decoded_.at(place.second).block;
}

}  // namespace statcollect
