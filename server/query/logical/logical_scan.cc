#include "server/query/logical/logical_scan.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "server/store/finished_digest.h"

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

// Of blocks that are equal if their records and hashes are.
BlockDigest DigestOf(const StatColumns& block) {
  XXH3_state_t state;
  XXH3_128bits_reset(&state);
  const std::uint64_t size[] = {block.size(), block.sketch_width};
  XXH3_128bits_update(&state, size, sizeof size);
  for (const auto* column : {&block.activation, &block.layout, &block.order})
    XXH3_128bits_update(&state, column->data(), column->size() * sizeof(std::uint32_t));
  for (const TensorStats& stats : block.stats)
    XXH3_128bits_update(&state, &stats.hash, sizeof stats.hash);
  return FinishedDigest(state);
}

BlockHead HeadOf(std::uint64_t step, const StatColumns& block, bool hashed) {
  return {.step = step,
          .activation = *std::ranges::min_element(block.activation),
          .records = block.size(),
          .digest = hashed ? DigestOf(block) : UniqueDigest(),
          .activations = XXH3_64bits(block.activation.data(),
                                     block.activation.size() * sizeof(std::uint32_t))};
}

}  // namespace

LogicalScan::LogicalScan(LogicalRun& run, LogicalRun::Attempt* attempt, StepBounds steps)
    : run_(run), attempt_(attempt) {
  if (attempt_ == nullptr) return;
  for (const LogicalRun::Member& member : attempt_->members) {
    scans_.push_back(run_.store_.ScanStats(attempt_->id, member.rank, steps));
    there_.push_back(scans_.back()->NextHead());
    if (status_.ok()) status_ = scans_.back()->status();
  }
}

bool LogicalScan::NextHead() {
  if (!status_.ok()) return false;
  if (NextBlock(at_ + 1)) return true;
  do {
    if (!GoToNextStep()) return false;
    ReadStep();
    if (!status_.ok()) return false;
  } while (!NextBlock(0));
  return true;
}

bool LogicalScan::NextBlock(std::size_t from) {
  const auto& blocks = merged_.blocks;
  for (at_ = from; at_ < blocks.size() && blocks[at_].empty();) ++at_;
  if (at_ >= blocks.size()) return false;
  head_ = HeadOf(step_, blocks[at_], merged_.hashed[at_]);
  return true;
}

bool LogicalScan::GoToNextStep() {
  bool any = false;
  for (std::size_t i = 0; i < scans_.size(); ++i) {
    if (!there_[i]) continue;
    step_ = any ? std::min(step_, scans_[i]->head().step) : scans_[i]->head().step;
    any = true;
  }
  return any;
}

void LogicalScan::ReadStep() {
  gathered_.Clear();
  for (std::size_t i = 0; i < scans_.size() && status_.ok(); ++i) {
    StatScan& scan = *scans_[i];
    while (there_[i] && status_.ok() && scan.head().step == step_) {
      if (!scan.Load(/*sketches=*/true, &gathered_.NewBlock())) break;
      status_ = run_.Add(*attempt_, i, gathered_);
      there_[i] = scan.NextHead();
    }
    if (status_.ok()) status_ = scan.status();
  }
  if (status_.ok()) run_.Merge(*attempt_, step_, gathered_, &merged_);
}

bool LogicalScan::Load(bool sketches, StatColumns* columns) {
  if (!status_.ok()) return false;
  std::swap(*columns, merged_.blocks[at_]);
  if (sketches) return true;
  columns->sketch_width = 0;
  columns->sketch.clear();
  return true;
}

bool LogicalScan::LoadHashes(HashColumns* columns) {
  if (!status_.ok()) return false;
  *columns = HashesOf(merged_.blocks[at_]);
  return true;
}

std::uint64_t LogicalScan::bytes_read() const {
  std::uint64_t bytes = 0;
  for (const auto& scan : scans_) bytes += scan->bytes_read();
  return bytes;
}

}  // namespace statcollect::query
