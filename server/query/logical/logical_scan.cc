#include "server/query/logical/logical_scan.h"

#include <algorithm>
#include <atomic>
#include <cstring>

namespace statcollect::query {
namespace {

// Equal digests mean equal blocks; merged ones have none, so that no two are equal.
BlockDigest UniqueDigest() {
  static std::atomic<std::uint64_t> next{1};
  const std::uint64_t number = next.fetch_add(1, std::memory_order_relaxed);
  BlockDigest digest{};
  std::memcpy(digest.data(), &number, sizeof(number));
  return digest;
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
  if (at_ + 1 < blocks_.size()) {
    ++at_;
  } else {
    do {
      if (!ReadStep()) return false;
    } while (blocks_.empty());
    at_ = 0;
  }
  const StatColumns& block = blocks_[at_];
  head_ = {.step = step_,
           .activation = *std::min_element(block.activation.begin(), block.activation.end()),
           .records = block.size(),
           .digest = UniqueDigest()};
  return true;
}

bool LogicalScan::ReadStep() {
  blocks_.clear();
  bool any = false;
  for (std::size_t i = 0; i < scans_.size(); ++i) {
    if (!there_[i]) continue;
    step_ = any ? std::min(step_, scans_[i]->head().step) : scans_[i]->head().step;
    any = true;
  }
  if (!any) return false;
  gathered_.Clear();
  for (std::size_t i = 0; i < scans_.size() && status_.ok(); ++i) {
    while (there_[i] && status_.ok() && scans_[i]->head().step == step_) {
      if (!scans_[i]->Load(/*sketches=*/true, &gathered_.NewBlock())) break;
      status_ = run_.Add(*attempt_, i, gathered_);
      there_[i] = scans_[i]->NextHead();
    }
    if (status_.ok()) status_ = scans_[i]->status();
  }
  if (!status_.ok()) return false;
  run_.Merge(*attempt_, step_, gathered_, &blocks_);
  return true;
}

bool LogicalScan::Load(bool sketches, StatColumns* columns) {
  if (sketches) {
    std::swap(*columns, blocks_[at_]);
    return true;
  }
  *columns = blocks_[at_];
  columns->sketch_width = 0;
  columns->sketch.clear();
  return true;
}

std::uint64_t LogicalScan::bytes_read() const {
  std::uint64_t bytes = 0;
  for (const auto& scan : scans_) bytes += scan->bytes_read();
  return bytes;
}

}  // namespace statcollect::query
