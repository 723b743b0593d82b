#include "server/query/logical/logical_scan.h"

#include <algorithm>
#include <atomic>
#include <cstring>

namespace statcollect::query {
namespace {

// Of blocks whose hashes do not tell whether they are equal.
BlockDigest UniqueDigest() {
  static std::atomic<std::uint64_t> next{1};
  const std::uint64_t number = next.fetch_add(1, std::memory_order_relaxed);
  BlockDigest digest{};
  std::memcpy(digest.data(), &number, sizeof(number));
  return digest;
}

}  // namespace

LogicalScan::LogicalScan(LogicalRun& run, LogicalRun::Attempt* attempt, StepBounds steps)
    : run_(run), attempt_(attempt), several_(steps.first < steps.last) {
  if (attempt_ != nullptr) scans_ = Open(steps);
}

LogicalScan::Scans LogicalScan::Open(StepBounds steps) {
  Scans scans;
  for (const LogicalRun::Member& member : attempt_->members) {
    scans.of.push_back(run_.store_.ScanStats(attempt_->id, member.rank, steps));
    scans.there.push_back(scans.of.back()->NextHead());
    if (status_.ok()) status_ = scans.of.back()->status();
  }
  return scans;
}

bool LogicalScan::NextHead() {
  if (!status_.ok()) return false;
  if (at_ < kMergedBlocks) {
    if (NextBlock(at_ + 1)) return true;
    attempt_->skips.store(!loaded_, std::memory_order_relaxed);
  }
  do {
    if (!GoToNextStep()) return false;
    ReadHeads();
    if (!status_.ok()) return false;
  } while (!NextBlock(0));
  return true;
}

bool LogicalScan::NextBlock(std::size_t from) {
  for (at_ = from; at_ < kMergedBlocks && heads_[at_].records == 0;) ++at_;
  return at_ < kMergedBlocks;
}

bool LogicalScan::GoToNextStep() {
  bool any = false;
  for (std::size_t i = 0; i < scans_.of.size(); ++i) {
    if (!scans_.there[i]) continue;
    step_ = any ? std::min(step_, scans_.of[i]->head().step) : scans_.of[i]->head().step;
    any = true;
  }
  return any;
}

void LogicalScan::ReadHeads() {
  loaded_ = whole_ = false;
  const bool first_hashes = several_ && attempt_->skips.load(std::memory_order_relaxed) &&
                            attempt_->known_shapes.load(std::memory_order_relaxed) > 0;
  if (first_hashes) {
    if (ReadHashes() || !status_.ok()) return;
    ReadWholeAgain();
  } else {
    unknown_shape_ = !run_.KnowsShapes(*attempt_);
    ReadWhole(scans_);
  }
  if (!status_.ok()) return;
  heads_ = HeadsOfMerged();
  const bool hashed = merged_.hashed[0] && merged_.hashed[1] && !gathered_.parts.empty();
  if (unknown_shape_ && hashed) run_.KeepShape(*attempt_, step_, gathered_, merged_);
}

bool LogicalScan::ReadHashes() {
  hashes_.Clear();
  for (std::size_t i = 0; i < scans_.of.size(); ++i) {
    StatScan& scan = *scans_.of[i];
    while (scans_.there[i] && scan.head().step == step_) {
      if (!scan.LoadHashes(&loaded_hashes_)) break;
      hashes_.Add(static_cast<std::uint32_t>(i), loaded_hashes_);
      scans_.there[i] = scan.NextHead();
    }
    status_ = scan.status();
    if (!status_.ok()) return false;
  }
  const auto shape = run_.ShapeOf(*attempt_, hashes_);
  unknown_shape_ = !shape;
  const auto heads = shape ? shape->Merge(step_, hashes_) : std::nullopt;
  if (heads) heads_ = *heads;
  std::atomic<int>& known = attempt_->known_shapes;
  const int now = known.load(std::memory_order_relaxed);
  known.store(heads ? std::min(now + 1, LogicalRun::kUnknownShapesMax) : now - 1,
              std::memory_order_relaxed);
  return heads.has_value();
}

void LogicalScan::ReadWhole(Scans& scans) {
  gathered_.Clear();
  for (std::size_t i = 0; i < scans.of.size() && status_.ok(); ++i) {
    while (scans.there[i] && status_.ok() && scans.of[i]->head().step == step_) {
      if (!scans.of[i]->Load(/*sketches=*/true, &gathered_.NewBlock())) break;
      status_ = run_.Add(*attempt_, i, gathered_);
      scans.there[i] = scans.of[i]->NextHead();
    }
    if (status_.ok()) status_ = scans.of[i]->status();
  }
  if (!status_.ok()) return;
  run_.Merge(*attempt_, step_, gathered_, &merged_);
  whole_ = true;
}

void LogicalScan::ReadWholeAgain() {
  Scans scans = Open({.first = step_, .last = step_});
  if (!status_.ok()) return;
  ReadWhole(scans);
  for (const auto& scan : scans.of) bytes_again_ += scan->bytes_read();
}

MergedHeads LogicalScan::HeadsOfMerged() const {
  MergedHeads heads;
  std::vector<std::uint64_t> hashes;
  for (std::size_t b = 0; b < kMergedBlocks; ++b) {
    const StatColumns& block = merged_.blocks[b];
    heads[b] = HeadWithoutValues(step_, block);
    hashes.clear();
    for (const TensorStats& stats : block.stats) hashes.push_back(stats.hash);
    heads[b].digest = merged_.hashed[b] ? DigestWith(heads[b], hashes) : UniqueDigest();
  }
  return heads;
}

bool LogicalScan::Load(bool sketches, StatColumns* columns) {
  if (!status_.ok()) return false;
  loaded_ = true;
  if (!whole_) ReadWholeAgain();
  if (!status_.ok()) return false;
  std::swap(*columns, merged_.blocks[at_]);
  if (sketches) return true;
  columns->sketch_width = 0;
  columns->sketch.clear();
  return true;
}

bool LogicalScan::LoadHashes(HashColumns* columns) {
  StatColumns block;
  if (!Load(/*sketches=*/true, &block)) return false;
  *columns = HashesOf(block);
  return true;
}

std::uint64_t LogicalScan::bytes_read() const {
  std::uint64_t bytes = bytes_again_;
  for (const auto& scan : scans_.of) bytes += scan->bytes_read();
  return bytes;
}

}  // namespace statcollect::query
