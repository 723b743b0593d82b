// The engine's part for replays of CUDA graphs: see engine.h and replay.h.
#include <algorithm>
#include <bit>
#include <cstring>
#include <string>
#include <utility>

#include "agent/stats/cuda/engine_parts.h"
#include "agent/stats/cuda/plan.h"

namespace statcollect::stats::cuda {
namespace {

constexpr std::size_t kChunkBytesMin = 64u << 10;
constexpr std::size_t kRowsBatch = 16;  // read between two locks

Status TooManyGraphs(const std::string& what) {
  return {Code::kResourceExhausted,
          "observe a CUDA tensor in a graph: more than " + what + " in live graphs"};
}

}  // namespace

// Rows of the log as they were when they held what they are to hold.
struct CudaEngine::Rows {
  struct Row {
    Record record;
    std::vector<double> samples;
    Graphs::Launched of;
  };
  std::vector<Row> rows;
  std::uint64_t missed = 0;  // rows that were overwritten, or of graphs that are gone
  bool failed = false;       // the device
};

Status CudaEngine::OpenGraphs(Pool& pool) {
  if (pool.graphs != nullptr) return Status::Ok();
  auto graphs = std::make_unique<Graphs>();
  const auto fill = [&]() -> Status {
    const int device = pool.device;
    const auto allocate = [&](bool on_device, std::size_t bytes, auto** out) -> Status {
      const auto memory =
          on_device ? api_->AllocateOnDevice(device, bytes) : api_->AllocateOnHost(device, bytes);
      if (memory.ok()) *out = static_cast<std::remove_reference_t<decltype(*out)>>(*memory);
      return memory.status();
    };
    STATCOLLECT_RETURN_IF_ERROR(
        allocate(true, sizeof(ReplayControl) * (1 + kReplayLanes), &graphs->control));
    STATCOLLECT_RETURN_IF_ERROR(allocate(true, sizeof(ReplayLog), &graphs->log));
    STATCOLLECT_RETURN_IF_ERROR(allocate(false, sizeof(Record) * options_.records, &graphs->rows));
    if (options_.samples > 0) {
      STATCOLLECT_RETURN_IF_ERROR(
          allocate(false, sizeof(double) * options_.samples * options_.records, &graphs->samples));
    }
    for (std::uint32_t i = 0; i < options_.records; ++i) graphs->rows[i].ready = 0;
    const ReplayLog log = {0, graphs->rows, graphs->samples, options_.records, options_.samples};
    return api_->CopyToDevice(device, graphs->log, &log, sizeof(log));
  };
  const Status filled = fill();
  if (!filled.ok()) {
    FreeGraphs(pool.device, *graphs);
    return filled;
  }
  for (std::size_t i = kReplayLanes; i > 0; --i)
    graphs->free_latches.push_back(graphs->control + i);
  pool.graphs = std::move(graphs);
  return Status::Ok();
}

Result<CudaEngine::ReplayLane*> CudaEngine::ReplayLaneFor(Pool& pool, void* stream,
                                                          std::uint64_t capture) {
  Graphs& graphs = *pool.graphs;
  std::shared_ptr<std::atomic<bool>> gone;
  for (const auto& lane : graphs.lanes) {
    if (lane->capture != capture) continue;
    if (lane->key == LaneKey(stream)) return lane.get();
    gone = lane->gone;
  }
  if (graphs.free_latches.empty()) return TooManyGraphs(std::to_string(kReplayLanes) + " streams");
  if (gone == nullptr) {
    gone = std::make_shared<std::atomic<bool>>(false);
    STATCOLLECT_RETURN_IF_ERROR(api_->TieToGraph(pool.device, stream, gone));
  }
  auto lane = std::make_unique<ReplayLane>();
  lane->capture = capture;
  lane->key = LaneKey(stream);
  lane->latch = graphs.free_latches.back();
  lane->gone = std::move(gone);
  STATCOLLECT_RETURN_IF_ERROR(api_->EnqueueLatch(pool.device, lane->latch, graphs.control, stream));
  graphs.free_latches.pop_back();
  return graphs.lanes.emplace_back(std::move(lane)).get();
}

Status CudaEngine::GiveScratch(Pool& pool, ReplayLane& lane, std::uint32_t width, Task* task) {
  const std::size_t samples = sizeof(double) * task->sample_count;
  if (task->units < 2 && samples == 0) return Status::Ok();
  const std::size_t bytes = std::max(
      kChunkBytesMin, std::bit_ceil((ScratchBytes(task->units, width) + 63) / 64 * 64 + samples));
  if (lane.chunks.empty() || lane.chunks.rbegin()->first < bytes) {
    auto& free = pool.graphs->free_chunks;
    if (const auto found = free.lower_bound(bytes); found != free.end()) {
      lane.chunks.insert(free.extract(found));
    } else {
      const auto memory = api_->AllocateOnDevice(pool.device, bytes);
      if (!memory.ok()) return {Code::kResourceExhausted, memory.status().message()};
      lane.chunks.emplace(bytes, static_cast<unsigned char*>(*memory));
    }
  }
  const auto& [size, chunk] = *lane.chunks.rbegin();
  task->scratch = ScratchAt(chunk, task->units);
  if (samples > 0) task->samples = reinterpret_cast<double*>(chunk + size - samples);
  return Status::Ok();
}

Status CudaEngine::GiveMap(Pool& pool, ReplayLane& lane, std::span<const std::uint64_t> map,
                           Task* task) {
  if (map.size() <= kMapWordsInLaunch) return Status::Ok();
  const std::size_t bytes = std::bit_ceil(map.size_bytes());
  auto& free = pool.graphs->free_maps;
  unsigned char* memory = nullptr;
  if (const auto found = free.lower_bound(bytes); found != free.end()) {
    memory = lane.maps.insert(free.extract(found))->second;
  } else {
    const auto allocated = api_->AllocateOnDevice(pool.device, bytes);
    if (!allocated.ok()) return {Code::kResourceExhausted, allocated.status().message()};
    memory = lane.maps.emplace(bytes, static_cast<unsigned char*>(*allocated))->second;
  }
  task->map = reinterpret_cast<const std::uint64_t*>(memory);
  return api_->CopyToDevice(pool.device, memory, map.data(), map.size_bytes());
}

Status CudaEngine::AddToGraph(const CpuTensor& tensor, int device, void* stream,
                              const ReplayControl& now, std::uint32_t sketch, std::uint32_t samples,
                              void* cookie, std::uint64_t* graph, const Placement* placement) {
  Task task;
  STATCOLLECT_RETURN_IF_ERROR(MakeTask(tensor, &task));
  std::vector<std::uint64_t> map;
  if (placement != nullptr) STATCOLLECT_RETURN_IF_ERROR(MakeIndexMap(tensor, *placement, &map));
  const auto capture = api_->CaptureOf(device, stream);
  if (!capture.ok()) return capture.status();
  *graph = *capture;
  Pool& pool = PoolOf(device);
  MutexLock lock(pool.mutex);
  STATCOLLECT_RETURN_IF_ERROR(CheckOpen(pool));
  STATCOLLECT_RETURN_IF_ERROR(OpenGraphs(pool));
  Graphs& graphs = *pool.graphs;
  if (graphs.launches.size() >= kGraphTensorsMax)
    return TooManyGraphs(std::to_string(kGraphTensorsMax) + " tensors");
  if (graphs.lanes.empty()) {  // no replay can be reading it
    STATCOLLECT_RETURN_IF_ERROR(api_->CopyToDevice(device, graphs.control, &now, sizeof(now)));
  }
  const auto lane = ReplayLaneFor(pool, stream, *capture);
  if (!lane.ok()) return lane.status();
  Launch launch;
  launch.tables = pool.tables;
  launch.units = task.units;
  launch.width = LaunchWidth(sketch);
  task.sample_count = static_cast<std::uint32_t>(
      std::min<std::uint64_t>({samples, options_.samples, task.components}));
  STATCOLLECT_RETURN_IF_ERROR(GiveScratch(pool, **lane, launch.width, &task));
  STATCOLLECT_RETURN_IF_ERROR(GiveMap(pool, **lane, map, &task));
  task.ticket = graphs.next_launch;
  task.replay = (*lane)->latch;
  task.log = graphs.log;
  launch.only = task;
  STATCOLLECT_RETURN_IF_ERROR(
      EnqueueKernel(device, tensor.dtype, launch, map, !map.empty(), stream));
  (*lane)->launches.push_back(graphs.next_launch);
  graphs.launches.emplace(graphs.next_launch++, Graphs::Launched{cookie, Numel(tensor.dtype, task),
                                                                 sketch, task.sample_count});
  return Status::Ok();
}

std::vector<int> CudaEngine::ReplayDevices() {
  std::vector<int> devices;
  MutexLock lock(mutex_);
  for (const auto& [device, pool] : pools_) {
    MutexLock pool_lock(pool->mutex);
    if (pool->has_graphs()) devices.push_back(device);
  }
  return devices;
}

bool CudaEngine::MarkReplays(int device, void* stream, const ReplayControl& now,
                             std::uint64_t number) {
  Pool& pool = PoolOf(device);
  Mark mark;
  {
    MutexLock lock(pool.mutex);
    if (!CheckOpen(pool).ok() || !pool.has_graphs()) return false;
    mark = {pool.graphs->control, pool.graphs->log, now, number};  // where they are for good
  }
  void* const in = api_->IsCapturing(device, stream) ? api_->OwnStream(device) : stream;
  const Status marked = api_->EnqueueMark(device, mark, in);
  if (marked.ok()) return true;
  const Status health = api_->Health(device);
  MutexLock lock(pool.mutex);
  if (pool.failure.ok()) pool.failure = health;
  return false;
}

bool CudaEngine::ReadRows(Pool& pool, Rows* rows) const {
  MutexLock lock(pool.mutex);
  if (pool.graphs == nullptr) return false;
  Graphs& graphs = *pool.graphs;
  rows->failed = !pool.failure.ok();
  const std::uint64_t size = options_.records;
  while (rows->rows.size() < kRowsBatch) {
    Record& at = graphs.rows[graphs.read % size];
    const std::uint64_t ready = std::atomic_ref(at.ready).load(std::memory_order_acquire);
    if (ready <= graphs.read) break;  // not there, or just being written
    if (ready == graphs.read + 1) {
      Rows::Row row;
      std::memcpy(static_cast<void*>(&row.record), &at, sizeof(Record));
      const auto launch = graphs.launches.find(row.record.launch);
      const bool known = launch != graphs.launches.end();
      if (known) row.of = launch->second;
      if (row.of.samples > 0) {
        const double* const samples = graphs.samples + graphs.read % size * options_.samples;
        row.samples.assign(samples, samples + row.of.samples);
      }
      std::atomic_thread_fence(std::memory_order_acquire);
      if (std::atomic_ref(at.ready).load(std::memory_order_relaxed) == ready) {
        ++graphs.read;
        if (known || row.record.launch == 0) {
          rows->rows.push_back(std::move(row));
        } else {
          ++rows->missed;
        }
        continue;
      }
    }
    // A later row stands here, or is about to: the oldest that may still be whole comes next.
    const std::uint64_t newest = std::max(ready - 1, graphs.read + size);
    rows->missed += newest - size + 1 - graphs.read;
    graphs.read = newest - size + 1;
    break;
  }
  return rows->rows.size() == kRowsBatch || rows->missed > 0;
}

void CudaEngine::PollReplays(Pool& pool, ReplayListener* listener) {
  std::vector<double> sketch;
  bool more = true;
  while (more) {
    Rows read;
    more = ReadRows(pool, &read);
    for (const Rows::Row& row : read.rows) {
      const Record& record = row.record;
      if (record.launch == 0) {
        listener->Marked(pool.device, record.step);
        continue;
      }
      sketch.resize(row.of.sketch);
      const TensorStats stats = FinishRecord(record.totals, record.sums, row.of.numel, sketch);
      listener->Replayed(row.of.cookie, record.step, stats, sketch, row.samples);
    }
    if (read.missed > 0) listener->Missed(pool.device, read.missed);
    if (read.failed && !more) listener->Failed(pool.device);
  }
}

void CudaEngine::BuryGraphs(Pool& pool, TimePoint now, ReplayListener* listener) {
  std::vector<void*> cookies;
  {
    MutexLock lock(pool.mutex);
    if (!pool.has_graphs()) return;
    Graphs& graphs = *pool.graphs;
    std::erase_if(graphs.lanes, [&](const std::unique_ptr<ReplayLane>& lane) {
      if (!lane->gone->load()) return false;
      if (!lane->gone_since) lane->gone_since = now;
      if (now - *lane->gone_since < kGrave) return false;
      for (const std::uint64_t number : lane->launches) {
        const auto launch = graphs.launches.find(number);
        cookies.push_back(launch->second.cookie);
        graphs.launches.erase(launch);
      }
      graphs.free_latches.push_back(lane->latch);
      graphs.free_chunks.merge(lane->chunks);
      graphs.free_maps.merge(lane->maps);
      return true;
    });
  }
  for (void* cookie : cookies) listener->Gone(cookie);
}

}  // namespace statcollect::stats::cuda
