#include "agent/staging/ledger.h"

#include <cassert>

namespace statcollect {
namespace {

void Add(std::map<std::string, std::uint64_t, std::less<>>* counts, std::string_view cause,
         std::uint64_t n) {
  const auto found = counts->find(cause);
  if (found != counts->end()) {
    found->second += n;
  } else {
    counts->emplace(cause, n);
  }
}

}  // namespace

void Ledger::Produce(std::uint64_t n) {
  MutexLock lock(mutex_);
  produced_ += n;
  pending_ += n;
  entered_ += n;
}

void Ledger::ProduceDropped(std::string_view cause, std::uint64_t n) {
  MutexLock lock(mutex_);
  produced_ += n;
  Add(&dropped_, cause, n);
}

void Ledger::Ack(std::uint64_t n) {
  if (n == 0) return;
  MutexLock lock(mutex_);
  acked_ += n;
  Settle(n);
}

void Ledger::Regress(std::uint64_t n, std::uint64_t gone) {
  if (n == 0) return;
  MutexLock lock(mutex_);
  assert(acked_ >= n && n >= gone);
  acked_ -= n;
  pending_ += n - gone;
  settled_ -= n - gone;
  if (gone > 0) Add(&dropped_, kDropRegressed, gone);
}

void Ledger::Drop(std::string_view cause, std::uint64_t n) {
  if (n == 0) return;
  MutexLock lock(mutex_);
  Add(&dropped_, cause, n);
  Settle(n);
}

void Ledger::Settle(std::uint64_t n) {
  assert(pending_ >= n);
  pending_ -= n;
  settled_ += n;
  settled_changed_.notify_all();
}

AgentCounters Ledger::Snapshot() const {
  MutexLock lock(mutex_);
  AgentCounters counters{
      .produced = produced_, .acked = acked_, .pending = pending_, .dropped_by_cause = {}};
  counters.dropped_by_cause.insert(dropped_.begin(), dropped_.end());
  return counters;
}

bool Ledger::WaitSettled(std::chrono::steady_clock::time_point deadline) const {
  MutexLock lock(mutex_);
  const std::uint64_t target = entered_;
  return settled_changed_.wait_until(
      mutex_, deadline, [&]() STATCOLLECT_REQUIRES(mutex_) { return settled_ >= target; });
}

}  // namespace statcollect
