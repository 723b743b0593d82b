// The CUDA engine's arithmetic on the host: the same units, pieces, nodes and code as on a device, one warp
// after the other, lanes in a loop (agent/stats/cuda/warp.h).
#ifndef STATCOLLECT_TESTS_AGENT_STATS_CUDA_EMULATION_H_
#define STATCOLLECT_TESTS_AGENT_STATS_CUDA_EMULATION_H_

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include "agent/stats/cuda/exponents.h"
#include "agent/stats/cuda/launch.h"
#include "agent/stats/cuda/plan.h"
#include "agent/stats/cuda/reduce.h"
#include "common/names.h"

namespace statcollect::stats::cuda {

// One warp's part of ReduceTensors in kernel.cuh.
template <typename C>
class WarpEmulation {
 public:
  explicit WarpEmulation(std::uint32_t width)
      : memory_(new (std::align_val_t(64)) unsigned char[WarpBytes(width)]), own_(memory_.get(), width) {
    HostWarp::ForEach([&](int lane) { keys_[lane] = KeysOf<C>(lane, kHashKeys.pairs); });
  }

  void ReduceUnit(const Task& task, std::uint64_t unit) {
    std::fill_n(own_.unit.sums, own_.sketch.width, 0.0);
    *own_.unit.totals = Totals();
    const std::uint64_t begin = unit * task.unit_pieces,
                        end = std::min(begin + task.unit_pieces, task.pieces);
    for (std::uint64_t number = begin; number < end; ++number) {
      Stage(task, number);
      Append(PieceOf<C>(task, number, own_.staged));
      if (number + 1 == end || held_ == kHeldMax) Flush();
    }
  }

  // A finished unit goes up the tree, as in FinishUnit.
  void Finish(const Task& task, std::uint32_t node, Record* record) {
    const std::uint32_t width = own_.sketch.width;
    std::uint32_t nodes = task.units, first = 0;
    while (nodes > 1) {
      const std::size_t at = first + node;
      std::copy_n(own_.unit.sums, width, task.scratch.sums + at * width);
      task.scratch.totals[at] = *own_.unit.totals;
      const std::uint32_t parent = node / kNodeChildren, oldest = parent * kNodeChildren;
      const std::uint32_t children = std::min(nodes - oldest, kNodeChildren);
      std::uint32_t& ticket = task.scratch.tickets[first + nodes + parent - task.units];
      if (++ticket != children) return;
      ticket = 0;
      CombineNodes<HostWarp>(task.scratch.totals + first + oldest,
                             task.scratch.sums + std::size_t{first + oldest} * width, children, width,
                             own_.unit);
      node = parent;
      first += nodes;
      nodes = (nodes + kNodeChildren - 1) / kNodeChildren;
    }
    record->totals = *own_.unit.totals;
    std::copy_n(own_.unit.sums, width, record->sums);
    ++record->ready;
  }

 private:
  struct Free {
    void operator()(unsigned char* memory) const { ::operator delete[](memory, std::align_val_t(64)); }
  };

  void Stage(const Task& task, std::uint64_t number) {
    for (int v = 0; v < kPieceVectors; ++v) {
      if (LiesInVectors(task)) {
        own_.staged[v] = {};
        const int bytes = BytesIn<C>(task, number, v);
        if (bytes > 0)
          std::memcpy(&own_.staged[v], task.data + number * kPieceBytes + v * kVectorBytes, bytes);
      } else {
        GatherVector<C>(task, number, v, own_.staged + v);
      }
    }
  }

  void Append(const Piece& piece) {
    bool done = false;
    if constexpr (!C::kWide) {
      const auto released = [this] { std::memset(static_cast<void*>(own_.staged), 0xa5, kPieceBytes); };
      if (piece.components == kPieceComponents<C>) {
        done = AppendNarrow<C, false, HostWarp>(piece, keys_, own_.sketch, held_, own_.unit, released);
        held_ += done ? 1 : 0;
      } else {
        Flush();
        done = AppendNarrow<C, true, HostWarp>(piece, keys_, own_.sketch, 0, own_.unit, released);
        held_ = done ? 1 : 0;
        Flush();
      }
    }
    if (done) return;
    Flush();
    AppendWide<C, HostWarp>(piece, keys_, own_.sketch, own_.unit);
  }

  void Flush() {
    if (held_ != 0) FlushSlots<HostWarp>(own_.sketch.slots, own_.sketch.width, own_.unit.sums);
    held_ = 0;
  }

  const std::unique_ptr<unsigned char[], Free> memory_;
  WarpMemory own_;
  HostLanes<LaneKeys<C>> keys_;
  std::uint32_t held_ = 0;  // pieces in the slots
};

// What the kernel that counts exponents does, in another order.
inline void EmulateExponents(DType dtype, const ExponentLaunch& launch) {
  const std::size_t words = ExponentWords(launch.bins);
  for (std::size_t i = 0; i < words; ++i) {
    if (launch.scratch[i] != 0) std::abort();
  }
  WithComponent(dtype, [&](auto component) {
    using C = decltype(component);
    for (std::uint64_t v = VectorsOf<C>(launch.task); v-- > 0;)
      CountVector<C>(launch, v, [&](std::uint32_t bin) { ++launch.scratch[1 + bin]; });
  });
  std::copy_n(launch.scratch + 1, launch.bins, launch.row + 1);
  std::fill_n(launch.scratch, words, std::uint64_t{0});
  __atomic_store_n(launch.row, launch.ticket, __ATOMIC_RELEASE);
}

struct Emulated {
  TensorStats stats;
  std::vector<double> sketch;
};

// `order`: the units' order of completion; empty: as numbered. `unit_pieces`: as large tensors have them; 0:
// as this one has.
inline Emulated Emulate(const CpuTensor& tensor, std::uint32_t sketch_width,
                        std::span<const std::uint32_t> order = {}, std::uint32_t unit_pieces = 0) {
  Emulated result;
  Task task;
  if (!MakeTask(tensor, &task).ok()) std::abort();
  if (unit_pieces != 0) {
    task.unit_pieces = unit_pieces;
    task.units = static_cast<std::uint32_t>(DivideUp(task.pieces, unit_pieces));
  }
  const std::uint32_t width = LaunchWidth(sketch_width);
  std::vector<double> scratch(ScratchBytes(task.units, width) / sizeof(double) + 2);
  task.scratch = ScratchAt(reinterpret_cast<unsigned char*>(scratch.data()), task.units);
  Record record{};
  WithComponent(tensor.dtype, [&](auto component) {
    WarpEmulation<decltype(component)> warp(width);
    for (std::uint32_t i = 0; i < task.units; ++i) {
      const std::uint32_t unit = order.empty() ? i : order[i];
      warp.ReduceUnit(task, unit);
      warp.Finish(task, unit, &record);
    }
  });
  if (record.ready != 1) std::abort();
  const std::uint64_t numel = IsComplex(tensor.dtype) ? task.components / 2 : task.components;
  result.sketch.resize(sketch_width);
  result.stats = FinishRecord(record.totals, {record.sums, width}, numel, result.sketch);
  return result;
}

}  // namespace statcollect::stats::cuda

#endif  // STATCOLLECT_TESTS_AGENT_STATS_CUDA_EMULATION_H_
