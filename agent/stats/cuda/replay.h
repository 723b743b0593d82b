// How launches that were captured into a CUDA graph tell their results: nobody on the host knows that a graph
// is replayed, so everything that belongs to one replay is found on the device.
//
// CONTROL, one a device: which step it is, and whether it is recorded. The host changes it with a MARK, a
// kernel of one thread in the stream in which graphs are replayed, so that replays before it in the stream
// see what was and those behind it what is.
//
// LATCH, one a captured stream: its first launch copies the control; all others of the stream read the copy.
// So all warps of a replay decide alike, even if a mark in another stream comes in between: what runs half
// would leave the scratch's tickets behind.
//
// LOG, one a device: rows of pinned memory, taken one after the other by whoever has a result and used
// again after `size` of them. Row n is written in this order: ready 0, everything else, ready n + 1. The host
// reads rows in their order, and looks at `ready` again after it has copied a row: where replays were
// faster than the host, it finds a later row's number and knows how many it has missed. A mark writes a row,
// too: once the host has read it, it has read all that came before it in the stream.
#ifndef STATCOLLECT_AGENT_STATS_CUDA_REPLAY_H_
#define STATCOLLECT_AGENT_STATS_CUDA_REPLAY_H_

#include <cstdint>

#include "agent/stats/cuda/piece.h"
#include "agent/stats/cuda/task.h"

namespace statcollect::stats::cuda {

template <typename T>
STATCOLLECT_WARP T LoadFresh(const T* from) {
#if defined(__CUDA_ARCH__)
  return __ldcg(from);  // another multiprocessor wrote it; its first-level cache is not this one's
#else
  return *from;
#endif
}

STATCOLLECT_WARP std::uint64_t FetchAndIncrement(std::uint64_t* counter) {
#if defined(__CUDA_ARCH__)
  return atomicAdd(reinterpret_cast<unsigned long long*>(counter), 1ull);
#else
  return __atomic_fetch_add(counter, 1, __ATOMIC_SEQ_CST);
#endif
}

// What this thread wrote before is seen by the host before what it writes after.
STATCOLLECT_WARP void FenceForHost() {
#if defined(__CUDA_ARCH__)
  __threadfence_system();
#else
  std::atomic_thread_fence(std::memory_order_seq_cst);
#endif
}

STATCOLLECT_WARP void WriteReady(Record* record, std::uint64_t value) {
#if defined(__CUDA_ARCH__)
  *reinterpret_cast<volatile std::uint64_t*>(&record->ready) = value;
#else
  __atomic_store_n(&record->ready, value, __ATOMIC_RELEASE);
#endif
}

// Begins row `number`: nobody reads it until its ready is written. One lane.
STATCOLLECT_WARP Record* BeginRow(const ReplayLog& log, std::uint64_t number, std::uint64_t launch,
                                  std::uint64_t step) {
  Record* const row = log.rows + number % log.size;
  WriteReady(row, 0);
  FenceForHost();
  row->launch = launch;
  row->step = step;
  return row;
}

// What a mark does. One thread.
STATCOLLECT_WARP void WriteMark(const Mark& mark) {
  *mark.control = mark.now;
  if (mark.number == 0) return;
  const std::uint64_t number = FetchAndIncrement(&mark.log->taken);
  Record* const row = BeginRow(*mark.log, number, 0, mark.number);
  FenceForHost();
  WriteReady(row, number + 1);
}

// Whether the launch computes anything.
STATCOLLECT_WARP bool IsWanted(const Task& task) {
  return task.replay == nullptr || task.replay->wanted != 0;
}

// Writes a tensor's result for the host: everything else, then `ready`.
template <typename Warp>
STATCOLLECT_WARP void PublishResult(const Task& task, const UnitSums& unit, std::uint32_t width) {
  Record* record = task.record;
  std::uint64_t ready = task.ticket;
  if (task.replay != nullptr) {
    const ReplayLog& log = *task.log;
    typename Warp::template Lanes<std::uint64_t> number;
    typename Warp::template Lanes<int> first;
    Warp::ForEach([&](int lane) {
      number[lane] = lane == 0 ? FetchAndIncrement(&task.log->taken) : 0;
      first[lane] = 0;
      if (lane == 0) (void)BeginRow(log, number[lane], task.ticket, task.replay->step);
    });
    Warp::Sync();
    ready = Warp::Any(Warp::template Gather<std::uint64_t>(number, first)) + 1;
    const std::uint64_t row = (ready - 1) % log.size;
    record = log.rows + row;
    double* const samples = log.samples + row * log.samples_each;
    Warp::ForEach([&](int lane) {
      for (auto i = static_cast<std::uint32_t>(lane); i < task.sample_count; i += kWarpLanes)
        samples[i] = LoadFresh(task.samples + i);  // another warp may have written them
    });
  }
  Warp::ForEach([&](int lane) {
    for (auto i = static_cast<std::uint32_t>(lane); i < width; i += kWarpLanes)
      record->sums[i] = unit.sums[i];
    if (lane == 0) record->totals = *unit.totals;
    FenceForHost();
  });
  Warp::Sync();
  Warp::ForEach([&](int lane) {
    if (lane == 0) WriteReady(record, ready);
  });
}

}  // namespace statcollect::stats::cuda

#endif  // STATCOLLECT_AGENT_STATS_CUDA_REPLAY_H_
