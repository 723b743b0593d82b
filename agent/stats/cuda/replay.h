// How launches that were captured into a CUDA graph report their results. The host does not notice
// when a graph is replayed, so the device itself determines everything that belongs to a replay.
//
// CONTROL, one per device: the current step, and whether it is recorded. The host changes it with a
// MARK, a kernel of one thread in the stream in which graphs are replayed, so that replays before
// it in the stream see the old state, and those after it the new one.
//
// LATCH, one per captured stream: its first launch copies the control; all others of the stream
// read the copy. So all warps of a replay make the same decision, even if a mark in another stream
// comes in between: a replay that runs partly would leave the scratch's tickets in an intermediate
// state.
//
// LOG, one a device: rows of pinned memory, taken one after the other by whoever has a result and
// used again after `size` of them. Row n is written in this order: ready 0, everything else, ready
// n + 1. The host reads rows in their order, and looks at `ready` again after it has copied a row:
// where replays were faster than the host, it finds a later row's number and knows how many it has
// missed. A mark writes a row, too: once the host has read it, it has read all that came before it
// in the stream.
#ifndef STATCOLLECT_AGENT_STATS_CUDA_REPLAY_H_
#define STATCOLLECT_AGENT_STATS_CUDA_REPLAY_H_

#include <cstdint>

#include "agent/stats/cuda/device.h"
#include "agent/stats/cuda/layout.h"
#include "agent/stats/cuda/task.h"

namespace statcollect::stats::cuda {

STATCOLLECT_WARP void WriteReady(Record* record, std::uint64_t value) {
  StoreForHost(&record->ready, value);
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
STATCOLLECT_WARP void PublishResult(const Task& task, const UnitSums& unit, std::uint32_t width) {
  const auto lane = static_cast<std::uint32_t>(Lane());
  Record* record = task.record;
  std::uint64_t ready = task.ticket;
  if (task.replay != nullptr) {
    const ReplayLog& log = *task.log;
    std::uint64_t number = 0;
    if (lane == 0) {
      number = FetchAndIncrement(&task.log->taken);
      (void)BeginRow(log, number, task.ticket, task.replay->step);
    }
    number = FromLane(number, 0);
    __syncwarp();  // nobody writes before the row has begun
    ready = number + 1;
    record = log.rows + number % log.size;
    double* const samples = log.samples + number % log.size * log.samples_each;
    for (std::uint32_t i = lane; i < task.sample_count; i += kWarpLanes)
      samples[i] = LoadFresh(task.samples + i);  // another warp may have written them
  }
  for (std::uint32_t i = lane; i < width; i += kWarpLanes) record->sums[i] = unit.sums[i];
  if (lane == 0) record->totals = *unit.totals;
  __syncwarp();
  if (lane == 0) {
    FenceForHost();  // of what all lanes wrote
    WriteReady(record, ready);
  }
}

}  // namespace statcollect::stats::cuda

#endif  // STATCOLLECT_AGENT_STATS_CUDA_REPLAY_H_
