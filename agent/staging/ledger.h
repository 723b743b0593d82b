// The agent's bookkeeping: every record is counted when it is handed over and again when it is
// settled. Invariant of every snapshot: produced == acked + sum of dropped + pending. Each member
// is counted independently; none is derived from the others. Threads: any.
#ifndef STATCOLLECT_AGENT_STAGING_LEDGER_H_
#define STATCOLLECT_AGENT_STAGING_LEDGER_H_

#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "common/records.h"
#include "common/thread_annotations.h"

namespace statcollect {

// Causes of loss, as they appear in counters and in records_dropped events.
inline constexpr std::string_view kDropBufferFull =
    "buffer_full";  // no free slot: the collector is too slow or unreachable
inline constexpr std::string_view kDropTableFull =
    "table_full";  // too many different activations or shapes
inline constexpr std::string_view kDropDeviceError = "device_error";  // the GPU has failed
inline constexpr std::string_view kDropGraphCapture =
    "graph_capture";  // no room for what a CUDA graph would have recorded
inline constexpr std::string_view kDropGraphReplay =
    "graph_replay";  // replays outran the reading of their results, or were not ordered with the
                     // step's end
inline constexpr std::string_view kDropRejected = "rejected";  // the collector refused the session
inline constexpr std::string_view kDropRegressed =
    "regressed";  // acknowledged, lost by the collector, and no longer held
inline constexpr std::string_view kDropSpillDamaged =
    "spill_damaged";  // could not be read back from the spill file
inline constexpr std::string_view kDropClosed =
    "closed";  // not durable when the agent was closed, or later

class Ledger {
 public:
  // n records are in the agent's memory from now on.
  void Produce(std::uint64_t n = 1);
  // n records were handed over and lost at once.
  void ProduceDropped(std::string_view cause, std::uint64_t n = 1);
  // n pending records are durable.
  void Ack(std::uint64_t n);
  // n acknowledged records are not stored after all: `gone` of them are lost, the others are
  // pending again.
  void Regress(std::uint64_t n, std::uint64_t gone);
  // n pending records are lost.
  void Drop(std::string_view cause, std::uint64_t n = 1);

  AgentCounters Snapshot() const;

  // Waits until every record pending at the call is settled; false if the deadline comes first.
  // Records settle in the order of production, so this returns even while other threads keep
  // producing.
  bool WaitSettled(std::chrono::steady_clock::time_point deadline) const;

 private:
  void Settle(std::uint64_t n) STATCOLLECT_REQUIRES(mutex_);

  mutable Mutex mutex_;
  mutable ConditionVariable settled_changed_;
  std::uint64_t produced_
      STATCOLLECT_GUARDED_BY(mutex_) = 0,
      acked_ STATCOLLECT_GUARDED_BY(mutex_) = 0, pending_ STATCOLLECT_GUARDED_BY(mutex_) = 0;
  std::map<std::string, std::uint64_t, std::less<>> dropped_ STATCOLLECT_GUARDED_BY(mutex_);
  std::uint64_t entered_ STATCOLLECT_GUARDED_BY(mutex_) = 0,
                         settled_ STATCOLLECT_GUARDED_BY(mutex_) =
                             0;  // records that became pending; that stopped being pending
};

}  // namespace statcollect

#endif  // STATCOLLECT_AGENT_STAGING_LEDGER_H_
