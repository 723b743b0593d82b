#include "tests/agent/stats/cuda/emulation.h"

#include <algorithm>
#include <cstdlib>

#include "agent/stats/cuda/kernels.h"
#include "agent/stats/cuda/plan.h"
#include "common/names.h"
#include "tests/agent/stats/cuda/kernels_on_host.h"
#include "tests/agent/stats/cuda/shim/cuda_shim.h"

namespace statcollect::stats::cuda {
namespace {

template <typename... Parameters>
auto KernelAs(const void* kernel) {
  return reinterpret_cast<void (*)(Parameters...)>(const_cast<void*>(kernel));
}

}  // namespace

void RunKernel(DType dtype, const Launch& launch) {
  const std::uint32_t blocks = GridBlocks(launch.units, 1 + cuda_shim::Random(5));
  cuda_shim::Launch(KernelAs<Launch>(KernelOf(dtype)),
                    {blocks, kBlockThreads, BlockBytes(launch.width)}, launch);
}

void RunShardKernel(DType dtype, const ShardLaunch& launch) {
  const std::uint32_t blocks = GridBlocks(launch.units, 1 + cuda_shim::Random(5));
  cuda_shim::Launch(KernelAs<ShardLaunch>(ShardKernelOf(dtype)),
                    {blocks, kBlockThreads, BlockBytes(launch.width)}, launch);
}

void RunKernel(DType dtype, const ExponentLaunch& launch) {
  std::uint32_t vector_components = 0;
  const void* const kernel = ExponentKernelOf(dtype, &vector_components);
  const std::uint32_t blocks = ExponentBlocks(launch.task.components, vector_components, 1);
  cuda_shim::Launch(KernelAs<ExponentLaunch>(kernel),
                    {blocks, kExponentBlockThreads, launch.bins * sizeof(std::uint32_t)}, launch);
}

void RunKernel(DType dtype, const RowLaunch& launch) {
  const std::uint32_t blocks = RowsGrid(launch, static_cast<int>(DTypeBytes(dtype) / launch.parts));
  cuda_shim::Launch(KernelAs<RowLaunch>(RowKernelOf(dtype)),
                    {blocks, kRowsThreads, kRowsSharedBytes}, launch);
}

void RunKernel(const Mark& mark) { cuda_shim::Launch(KernelAs<Mark>(MarkKernel()), {}, mark); }

void RunLatch(ReplayControl* to, const ReplayControl* from) {
  cuda_shim::Launch(KernelAs<ReplayControl*, const ReplayControl*>(LatchKernel()), {}, to, from);
}

Emulated Emulate(const CpuTensor& tensor, std::uint32_t sketch_width, std::uint32_t unit_pieces,
                 const Placement* placement) {
  Emulated result;
  ShardLaunch launch;
  std::vector<std::uint64_t> map;
  if (placement != nullptr && !MakeIndexMap(tensor, *placement, &map).ok()) std::abort();
  Task& task = launch.only;
  if (!MakeTask(tensor, &task).ok()) std::abort();
  if (unit_pieces != 0) {
    task.unit_pieces = unit_pieces;
    task.units = static_cast<std::uint32_t>(DivideUp(task.pieces, unit_pieces));
  }
  launch.tables = &kKernelTables;
  launch.units = task.units;
  launch.width = LaunchWidth(sketch_width);
  std::vector<double> scratch(ScratchBytes(task.units, launch.width) / sizeof(double) + 2);
  task.scratch = ScratchAt(reinterpret_cast<unsigned char*>(scratch.data()), task.units);
  Record record{};
  task.record = &record;
  task.ticket = 1;
  if (map.size() > kMapWordsInLaunch) {
    task.map = map.data();
  } else {
    std::copy(map.begin(), map.end(), launch.map);
  }
  if (map.empty()) {
    RunKernel(tensor.dtype, launch);
  } else {
    RunShardKernel(tensor.dtype, launch);
  }
  if (record.ready != 1) std::abort();
  const auto* const tickets = task.scratch.tickets;
  if (std::any_of(tickets, tickets + kTicketBytes / sizeof(*tickets),
                  [](auto left) { return left != 0; }))
    std::abort();
  const std::uint64_t numel = IsComplex(tensor.dtype) ? task.components / 2 : task.components;
  result.sketch.resize(sketch_width);
  result.stats = FinishRecord(record.totals, {record.sums, launch.width}, numel, result.sketch);
  return result;
}

std::vector<RowRecord> EmulateRows(const CpuTensor& rows, std::uint64_t first,
                                   const RowChoice& choice) {
  std::vector<RowRecord> records(choice.count);
  RowLaunch launch = MakeRowLaunch(rows, first, choice);
  launch.tables = &kKernelTables;
  launch.records = records.data();
  launch.ticket = 1;
  RunKernel(rows.dtype, launch);
  return records;
}

}  // namespace statcollect::stats::cuda
