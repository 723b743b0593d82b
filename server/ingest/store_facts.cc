#include "server/ingest/store_facts.h"

#include <algorithm>
#include <utility>

namespace statcollect {
namespace {

constexpr std::chrono::seconds kCensusInterval{1};

}  // namespace

StoreFacts::StoreFacts(Store& store, const Clock& clock, Committer& committer,
                       std::chrono::milliseconds patience)
    : store_(store), clock_(clock), committer_(committer), patience_(patience), thread_([this] {
        Run();
      }) {}

StoreFacts::~StoreFacts() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
  }
  thread_.join();
}

StoreFacts::Facts StoreFacts::Get() {
  Facts facts;
  bool in_time = false;
  {
    MutexLock lock(mutex_);
    const std::uint64_t mine = ++wanted_;
    changed_.notify_all();
    in_time = changed_.wait_for(mutex_, patience_,
                                [&]() STATCOLLECT_REQUIRES(mutex_) { return answered_ >= mine; });
    facts = facts_;
  }
  if (!in_time) facts.admission = committer_.Refusal();
  return facts;
}

void StoreFacts::ForgetCensus() {
  MutexLock lock(mutex_);
  census_at_.reset();
}

void StoreFacts::Run() {
  for (;;) {
    std::uint64_t asked = 0;
    {
      MutexLock lock(mutex_);
      changed_.wait(mutex_, [this]() STATCOLLECT_REQUIRES(mutex_) {
        return stopping_ || wanted_ > answered_;
      });
      if (stopping_) return;
      asked = wanted_;
    }
    Ask();
    MutexLock lock(mutex_);
    answered_ = asked;
    changed_.notify_all();
  }
}

// Each fact is there as soon as it is known: a later one may take long.
void StoreFacts::Ask() {
  if (const auto runs = store_.ListRuns(); runs.ok()) {
    MutexLock lock(mutex_);
    facts_.runs = runs->size();
  }
  Status admission = committer_.Admission();
  {
    MutexLock lock(mutex_);
    facts_.admission = std::move(admission);
  }
  if (const auto usage = store_.Usage(); usage.ok()) {
    MutexLock lock(mutex_);
    facts_.disk_bytes = usage->disk_bytes;
    facts_.disk_free_bytes =
        usage->disk_known ? std::optional(usage->disk_free_bytes) : std::optional<std::uint64_t>();
  }
  TakeCensus();
}

void StoreFacts::TakeCensus() {
  const auto now = clock_.Now();
  {
    MutexLock lock(mutex_);
    if (census_at_ && now - *census_at_ < kCensusInterval) return;
    census_at_ = now;
  }
  const auto census = store_.Census();
  MutexLock lock(mutex_);
  if (!census.ok()) {
    census_at_.reset();
    return;
  }
  facts_.dropped.clear();
  facts_.kept.clear();
  for (const AttemptTally& tally : *census) {
    for (const auto& [cause, count] : tally.dropped) facts_.dropped[cause] += count;
    if (tally.kept) facts_.kept.insert(tally.meta.run);
  }
}

}  // namespace statcollect
