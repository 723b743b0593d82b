#include "agent/stats/cuda/engine.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "agent/stats/cuda/engine_parts.h"
#include "agent/stats/cuda/plan.h"
#include "common/names.h"

namespace statcollect::stats::cuda {
namespace {

using TimePoint = CudaEngine::TimePoint;

constexpr std::chrono::milliseconds kWaitAtEnd{500};
constexpr std::size_t kPollBatch = 64;  // results taken between two locks

Status TooMany() { return {Code::kResourceExhausted, "observe a CUDA tensor: too many are in flight"}; }

Status NotBuilt() {
  return {Code::kUnimplemented,
          "statistics of a CUDA tensor: this build of the library has no CUDA engine; expected one "
          "configured with "
          "STATCOLLECT_CUDA=ON; copy the tensor to the CPU first"};
}

}  // namespace

CudaEngine::CudaEngine(const EngineOptions& options, std::unique_ptr<CudaApi> api)
    : options_(options), width_(LaunchWidth(options.sketch)), api_(std::move(api)) {}

CudaEngine::~CudaEngine() {
  const TimePoint deadline = std::chrono::steady_clock::now() + kWaitAtEnd;
  for (auto& [device, pool] : pools_) {
    const auto in_flight = [&pool = *pool, this] {
      return std::any_of(pool.lanes.begin(), pool.lanes.end(),
                         [&](Lane& lane) { return IsBusy(pool, lane); });
    };
    while (pool->failure.ok() && in_flight() && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    if (pool->graphs != nullptr) {
      std::erase_if(pool->graphs->lanes, [&](const auto& lane) {
        if (lane->gone->load()) pool->graphs->free_chunks.merge(lane->chunks);
        return lane->gone->load();
      });
    }
    if (!pool->failure.ok() || in_flight() || pool->has_graphs()) continue;
    Free(*pool);
  }
}

void CudaEngine::Free(Pool& pool) {
  if (pool.keys != nullptr) api_->FreeOnDevice(pool.device, pool.keys);
  if (pool.scratch != nullptr) api_->FreeOnDevice(pool.device, pool.scratch);
  if (pool.records != nullptr) api_->FreeOnHost(pool.device, pool.records);
  if (pool.samples != nullptr) api_->FreeOnHost(pool.device, pool.samples);
  if (pool.exponent_scratch != nullptr) api_->FreeOnDevice(pool.device, pool.exponent_scratch);
  if (pool.exponent_rows != nullptr) api_->FreeOnHost(pool.device, pool.exponent_rows);
  if (pool.host_tasks != nullptr) api_->FreeOnHost(pool.device, pool.host_tasks);
  if (pool.device_tasks != nullptr) api_->FreeOnDevice(pool.device, pool.device_tasks);
  if (pool.graphs == nullptr) return;
  FreeGraphs(pool.device, *pool.graphs);
}

void CudaEngine::FreeGraphs(int device, const Graphs& graphs) {
  if (graphs.control != nullptr) api_->FreeOnDevice(device, graphs.control);
  if (graphs.log != nullptr) api_->FreeOnDevice(device, graphs.log);
  if (graphs.rows != nullptr) api_->FreeOnHost(device, graphs.rows);
  if (graphs.samples != nullptr) api_->FreeOnHost(device, graphs.samples);
  for (const auto& [bytes, chunk] : graphs.free_chunks) api_->FreeOnDevice(device, chunk);
}

Status CudaEngine::Open(int device) {
  if (api_ == nullptr) return NotBuilt();
  MutexLock lock(mutex_);
  const auto found = pools_.find(device);
  if (found != pools_.end()) return found->second->status;
  auto pool = std::make_unique<Pool>();
  pool->device = device;
  pool->stopped = stopped_;
  pool->status = Fill(*pool);
  if (!pool->status.ok()) {
    Free(*pool);
    if (pool->status.code() == Code::kInvalidArgument)
      return pool->status;  // no such device: nothing to remember
    const Status refused = pool->status;
    pool = std::make_unique<Pool>();
    pool->status = refused;
  }
  return (pools_[device] = std::move(pool))->status;
}

Status CudaEngine::Check(const CpuTensor& tensor, int device) {
  STATCOLLECT_RETURN_IF_ERROR(Open(device));
  return tensor.data == nullptr ? Status::Ok() : api_->CheckMemory(device, tensor.data);
}

Result<void*> CudaEngine::Allocate(int device, bool on_device, std::size_t bytes) {
  return on_device ? api_->AllocateOnDevice(device, bytes) : api_->AllocateOnHost(device, bytes);
}

Status CudaEngine::Fill(Pool& pool) {
  const int device = pool.device;
  STATCOLLECT_RETURN_IF_ERROR(api_->Open(device));
  const auto allocate = [&](bool on_device, std::size_t bytes, auto** out) -> Status {
    const auto memory = Allocate(device, on_device, bytes);
    if (memory.ok()) *out = static_cast<std::remove_reference_t<decltype(*out)>>(*memory);
    return memory.status();
  };
  const std::size_t scratch_bytes = (ScratchBytes(kUnitsMax, width_) + 255) / 256 * 256;
  STATCOLLECT_RETURN_IF_ERROR(allocate(true, sizeof(kHashKeys.pairs), &pool.keys));
  STATCOLLECT_RETURN_IF_ERROR(
      api_->CopyToDevice(device, pool.keys, kHashKeys.pairs, sizeof(kHashKeys.pairs)));
  STATCOLLECT_RETURN_IF_ERROR(allocate(true, scratch_bytes * options_.lanes, &pool.scratch));
  STATCOLLECT_RETURN_IF_ERROR(allocate(false, sizeof(Record) * options_.records, &pool.records));
  if (options_.samples > 0) {
    STATCOLLECT_RETURN_IF_ERROR(
        allocate(false, sizeof(double) * options_.samples * options_.records, &pool.samples));
  }
  const std::size_t exponent_words = ExponentWords(options_.exponents);
  if (options_.exponents > 0) {
    const std::size_t bytes = exponent_words * sizeof(std::uint64_t);
    STATCOLLECT_RETURN_IF_ERROR(allocate(true, bytes * options_.lanes, &pool.exponent_scratch));
    STATCOLLECT_RETURN_IF_ERROR(allocate(false, bytes * options_.records, &pool.exponent_rows));
    for (std::uint32_t i = 0; i < options_.records; ++i) *ExponentRow(pool, i) = 0;
  }
  const std::size_t tasks = std::min<std::size_t>(kListTasks, options_.records);
  STATCOLLECT_RETURN_IF_ERROR(allocate(false, sizeof(Task) * tasks * kLists, &pool.host_tasks));
  STATCOLLECT_RETURN_IF_ERROR(allocate(true, sizeof(Task) * tasks * kLists, &pool.device_tasks));
  for (std::size_t i = 0; i < kLists; ++i) {
    pool.lists[i].host = pool.host_tasks + i * tasks;
    pool.lists[i].device = pool.device_tasks + i * tasks;
  }
  for (std::uint32_t i = options_.records; i-- > 0;) {
    pool.records[i].ready = 0;
    pool.free.push_back(i);
  }
  pool.lanes.resize(options_.lanes);
  for (std::uint32_t i = 0; i < options_.lanes; ++i) {
    pool.lanes[i].scratch = pool.scratch + i * scratch_bytes;
    if (options_.exponents > 0) pool.lanes[i].exponents = pool.exponent_scratch + i * exponent_words;
    pool.lanes[i].ring.resize(options_.records);
  }
  return Status::Ok();
}

bool CudaEngine::IsReady(const Pool& pool, const Flight& flight) const {
  const auto has_come = [&](std::uint64_t& ready) {
    return std::atomic_ref(ready).load(std::memory_order_acquire) >= flight.ticket;  // or of a later flight
  };
  return has_come(pool.records[flight.record].ready) &&
         (flight.output.exponents.empty() || has_come(*ExponentRow(pool, flight.record)));
}

std::uint64_t* CudaEngine::ExponentRow(const Pool& pool, std::uint32_t record) const {
  return pool.exponent_rows + record * ExponentWords(options_.exponents);
}

Status CudaEngine::CountExponents(const Pool& pool, const Lane& lane, DType dtype, const Task& task,
                                  std::uint32_t record, const Output& output, void* stream) const {
  if (output.exponents.empty()) return Status::Ok();
  ExponentLaunch launch;
  launch.task = task;
  launch.lowest = options_.exponent_lowest;
  launch.bins = options_.exponents;
  launch.scratch = lane.exponents;
  launch.row = ExponentRow(pool, record);
  launch.ticket = task.ticket;
  return api_->EnqueueExponents(pool.device, dtype, launch, stream);
}

// Whether a kernel may still use the lane's scratch. Tensors of one launch become ready in any order.
bool CudaEngine::IsBusy(const Pool& pool, Lane& lane) const {
  for (std::uint64_t flight = lane.last_launch; flight < lane.tail; ++flight) {
    if (!IsReady(pool, lane.At(flight))) return true;
  }
  return false;
}

// The stream's own lane, or one that no kernel uses. Null if there is none.
CudaEngine::Lane* CudaEngine::LaneFor(Pool& pool, void* stream) {
  void* const key = LaneKey(stream);
  Lane* idle = nullptr;
  for (Lane& lane : pool.lanes) {
    const bool busy = IsBusy(pool, lane);
    if (lane.key == key && lane.tail != 0) return &lane;
    if (!busy && (idle == nullptr || lane.tail < idle->tail)) idle = &lane;
  }
  if (idle != nullptr) idle->key = key;
  return idle;
}

Status CudaEngine::Enqueue(const CpuTensor& tensor, int device, void* stream, const Output& output,
                           void* cookie) {
  Task task;
  STATCOLLECT_RETURN_IF_ERROR(MakeTask(tensor, &task));
  Pool* const pool = &PoolOf(device);
  MutexLock lock(pool->mutex);
  STATCOLLECT_RETURN_IF_ERROR(CheckOpen(*pool));
  Lane* const lane = LaneFor(*pool, stream);
  if (lane == nullptr || pool->free.empty()) return TooMany();
  task.scratch = ScratchAt(lane->scratch, task.units);
  std::uint32_t record = 0;
  TakeRecord(*pool, output, &task, &record);
  Launch launch;
  launch.keys = reinterpret_cast<const std::uint64_t*>(pool->keys);
  launch.units = task.units;
  launch.width = LaunchWidth(static_cast<std::uint32_t>(output.sketch.size()));
  launch.only = task;
  Status launched = api_->Enqueue(device, tensor.dtype, launch, stream);
  if (launched.ok()) launched = CountExponents(*pool, *lane, tensor.dtype, task, record, output, stream);
  if (!launched.ok()) {
    pool->failure = launched;
    return launched;
  }
  lane->last_launch = lane->tail;
  lane->At(lane->tail++) = {kNoList,           record, task.ticket, Numel(tensor.dtype, task),
                            task.sample_count, output, cookie};
  return Status::Ok();
}

CudaEngine::Pool& CudaEngine::PoolOf(int device) {
  MutexLock lock(mutex_);
  return *pools_.at(device);
}

Status CudaEngine::CheckOpen(const Pool& pool) const {
  if (pool.stopped) return {Code::kAborted, "observe a CUDA tensor: the agent is closed"};
  return pool.failure;
}

void CudaEngine::TakeRecord(Pool& pool, const Output& output, Task* task, std::uint32_t* record) const {
  *record = pool.free.back();
  pool.free.pop_back();
  task->record = &pool.records[*record];
  task->ticket = pool.next_ticket++;
  if (output.samples.empty()) return;
  task->samples = pool.samples + std::size_t{*record} * options_.samples;
  task->sample_count = static_cast<std::uint32_t>(
      std::min<std::uint64_t>({output.samples.size(), options_.samples, task->components}));
}

void CudaEngine::EnqueueList(std::span<const Item> items, int device, void* stream,
                             const std::function<void(void*, const Status&)>& refused) {
  const auto one_by_one = [&](const Item& item) {
    const Status status = Enqueue(item.tensor, device, stream, item.output, item.cookie);
    if (!status.ok()) refused(item.cookie, status);
  };
  std::map<DType, std::vector<const Item*>> kinds;
  for (const Item& item : items) kinds[item.tensor.dtype].push_back(&item);
  for (const auto& [dtype, of_kind] : kinds) {
    std::size_t next = 0;
    while (next < of_kind.size()) {
      const std::size_t launched =
          of_kind.size() - next > 1 ? TryList(std::span(of_kind).subspan(next), device, stream) : 0;
      if (launched == 0) one_by_one(*of_kind[next]);
      next += std::max<std::size_t>(launched, 1);
    }
  }
}

std::size_t CudaEngine::TryList(std::span<const Item* const> items, int device, void* stream) {
  Pool* const pool = &PoolOf(device);
  MutexLock lock(pool->mutex);
  if (!CheckOpen(*pool).ok()) return 0;
  const auto list = std::find_if(pool->lists.begin(), pool->lists.end(),
                                 [](const List& each) { return each.in_flight == 0; });
  Lane* const lane = LaneFor(*pool, stream);
  if (list == pool->lists.end() || lane == nullptr) return 0;

  const std::size_t most = std::min({items.size(), kListTasks, pool->free.size()});
  std::vector<SharedScratch> before;  // each task's place
  SharedScratch scratch;
  std::uint32_t units = 0;
  while (before.size() < most) {
    Task& task = list->host[before.size()];
    task = Task();
    if (!MakeTask(items[before.size()]->tensor, &task).ok() || !scratch.Fits(task.units) ||
        units + task.units > kUnitsMax)
      break;
    before.push_back(scratch);
    scratch.Add(task.units);
    task.first_unit = units;
    units += task.units;
  }
  if (before.size() < 2) return 0;
  const std::uint32_t width = LaunchWidth(static_cast<std::uint32_t>(items.front()->output.sketch.size()));
  const DType dtype = items.front()->tensor.dtype;
  const std::uint64_t first = lane->tail;
  for (std::size_t i = 0; i < before.size(); ++i) {
    Task& task = list->host[i];
    std::uint32_t record = 0;
    TakeRecord(*pool, items[i]->output, &task, &record);
    task.scratch = scratch.At(lane->scratch, before[i], width);
    lane->At(first + i) = {static_cast<std::uint32_t>(list - pool->lists.begin()),
                           record,
                           task.ticket,
                           Numel(dtype, task),
                           task.sample_count,
                           items[i]->output,
                           items[i]->cookie};
  }
  Launch launch;
  launch.keys = reinterpret_cast<const std::uint64_t*>(pool->keys);
  launch.tasks = list->device;
  launch.task_count = static_cast<std::uint32_t>(before.size());
  launch.units = units;
  launch.width = width;
  Status launched =
      api_->CopyInStream(device, list->device, list->host, sizeof(Task) * before.size(), stream);
  if (launched.ok()) launched = api_->Enqueue(device, dtype, launch, stream);
  for (std::size_t i = 0; i < before.size() && launched.ok(); ++i) {
    launched = CountExponents(*pool, *lane, dtype, list->host[i], lane->At(first + i).record,
                              items[i]->output, stream);
  }
  if (!launched.ok()) {
    // Their records are lost with the device. One by one they are told why.
    pool->failure = launched;
    return 0;
  }
  list->in_flight = before.size();
  lane->last_launch = first;
  lane->tail = first + before.size();
  return before.size();
}

// Copies a ready result to where it belongs.
void CudaEngine::Land(const Pool& pool, const Flight& flight) const {
  const Record& record = pool.records[flight.record];
  *flight.output.stats = FinishRecord(record.totals, record.sums, flight.numel, flight.output.sketch);
  if (flight.output.sample_count != nullptr) *flight.output.sample_count = flight.samples;
  const auto& exponents = flight.output.exponents;
  if (!exponents.empty())
    std::copy_n(ExponentRow(pool, flight.record) + 1, exponents.size(), exponents.begin());
  if (flight.samples > 0) {
    std::copy_n(pool.samples + std::size_t{flight.record} * options_.samples, flight.samples,
                flight.output.samples.begin());
  }
}

std::size_t CudaEngine::Poll(TimePoint now, const std::function<void(void*, const Status&)>& done,
                             ReplayListener* listener) {
  std::vector<Pool*> pools;
  {
    MutexLock lock(mutex_);
    for (auto& [device, pool] : pools_) pools.push_back(pool.get());
  }
  std::size_t in_flight = 0;
  for (Pool* pool : pools) {
    in_flight += PollPool(*pool, now, done);
    if (listener == nullptr) continue;
    PollReplays(*pool, listener);
    BuryGraphs(*pool, now, listener);
  }
  return in_flight;
}

std::size_t CudaEngine::PollPool(Pool& pool, TimePoint now,
                                 const std::function<void(void*, const Status&)>& done) {
  std::array<Flight, kPollBatch> ready;
  while (true) {
    std::size_t count = 0, waiting = 0;
    Status failure;
    {
      MutexLock lock(pool.mutex);
      for (Lane& lane : pool.lanes) {
        while (!lane.empty() && count < kPollBatch && IsReady(pool, lane.At(lane.head))) {
          ready[count++] = lane.At(lane.head++);
        }
        waiting += lane.tail - lane.head;
      }
      if (pool.failure.ok() && pool.has_graphs()) ++waiting;
      if (count == 0 && waiting > 0) {
        if (pool.failure.ok() && now - pool.asked >= kHealthInterval) {
          pool.asked = now;
          pool.failure = api_->Health(pool.device);
        }
        failure = pool.failure;
        // Their records and scratch are lost: the device may still write them.
        for (Lane& lane : pool.lanes) {
          while (!failure.ok() && !lane.empty() && count < kPollBatch) ready[count++] = lane.At(lane.head++);
        }
      }
    }
    if (count == 0) return waiting;
    for (std::size_t i = 0; i < count; ++i) {
      if (failure.ok()) Land(pool, ready[i]);
      done(ready[i].cookie, failure);
    }
    if (!failure.ok()) continue;
    MutexLock lock(pool.mutex);
    for (std::size_t i = 0; i < count; ++i) {
      pool.free.push_back(ready[i].record);
      if (ready[i].list != kNoList) --pool.lists[ready[i].list].in_flight;
    }
  }
}

void CudaEngine::Abandon(bool for_good, const std::function<void(void*, const Status&)>& done) {
  MutexLock lock(mutex_);
  stopped_ = stopped_ || for_good;
  for (auto& [device, pool] : pools_) {
    MutexLock pool_lock(pool->mutex);
    pool->stopped = stopped_;
    if (pool->stopped && pool->failure.ok() && pool->has_graphs()) {
      const Mark off = {pool->graphs->control, pool->graphs->log, {}, 0};
      (void)api_->EnqueueMark(pool->device, off, api_->OwnStream(pool->device));
    }
    for (Lane& lane : pool->lanes) {
      for (; !lane.empty(); ++lane.head) {
        done(lane.At(lane.head).cookie, Status(Code::kAborted, "statistics of a CUDA tensor: cancelled"));
      }
    }
  }
}

}  // namespace statcollect::stats::cuda
