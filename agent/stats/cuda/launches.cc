// The engine's part that launches: see engine.h.
#include <algorithm>
#include <atomic>
#include <bit>
#include <map>
#include <type_traits>
#include <utility>

#include "agent/stats/cuda/engine_parts.h"
#include "agent/stats/cuda/plan.h"

namespace statcollect::stats::cuda {
namespace {

Status TooMany() {
  return {Code::kResourceExhausted, "observe a CUDA tensor: too many are in flight"};
}

}  // namespace

// A tensor of a list and, if it is a shard, its map.
struct CudaEngine::Listed {
  const Item* item = nullptr;
  std::vector<std::uint64_t> map;
};

// Tasks of the first tensors of a list, as many as share one launch. Their records are missing.
struct CudaEngine::ListPlan {
  DType dtype = DType::kUnspecified;
  std::uint32_t width = 0;
  bool shards = false;
  std::vector<Task> tasks;
  std::vector<std::size_t> maps_before;  // words of the maps of those before each task, and of all
  std::vector<SharedScratch> before;     // each task's place
  SharedScratch scratch;

  // Of the tasks, and of the maps behind them.
  std::size_t bytes() const {
    return sizeof(Task) * tasks.size() + sizeof(std::uint64_t) * maps_before[tasks.size()];
  }
};

bool CudaEngine::IsReady(const Flight& flight) const {
  const auto has_come = [&](std::uint64_t& ready) {
    return std::atomic_ref(ready).load(std::memory_order_acquire) >=
           flight.ticket;  // or of a later flight
  };
  return has_come(flight.place.record->ready) &&
         (flight.output.exponents.empty() || has_come(*flight.place.exponents));
}

// Whether a kernel may still use the lane's scratch. Tensors of one launch become ready in any
// order.
bool CudaEngine::IsBusy(Lane& lane) const {
  if (lane.launching) return true;
  for (std::uint64_t flight = std::max(lane.last_launch, lane.head); flight < lane.tail; ++flight) {
    if (!IsReady(lane.At(flight))) return true;
  }
  return false;
}

// The stream's own lane, or one that no kernel uses. Null if there is none.
CudaEngine::Lane* CudaEngine::LaneFor(Pool& pool, void* stream) {
  void* const key = LaneKey(stream);
  for (Lane& lane : pool.lanes) {
    if (lane.key == key && (lane.tail != 0 || lane.launching)) return &lane;
  }
  Lane* idle = nullptr;
  for (Lane& lane : pool.lanes) {
    if (!IsBusy(lane) && (idle == nullptr || lane.tail < idle->tail)) idle = &lane;
  }
  if (idle != nullptr) idle->key = key;
  return idle;
}

Status CudaEngine::CheckOpen(const Pool& pool) const {
  if (pool.stopped) return {Code::kAborted, "observe a CUDA tensor: the agent is closed"};
  return pool.failure;
}

Status CudaEngine::BeginLaunch(Pool& pool, void* stream, std::size_t wanted, Lane** lane) {
  pool.mutex.AssertHeld();
  while (true) {
    STATCOLLECT_RETURN_IF_ERROR(CheckOpen(pool));
    Lane* const found = LaneFor(pool, stream);
    if (found == nullptr) return TooMany();
    if (found->launching) {
      pool.changed.wait(pool.mutex);
      continue;
    }
    if (pool.free.size() < wanted && GrowRecords(pool, wanted)) continue;
    if (pool.free.empty()) return TooMany();
    found->launching = true;
    *lane = found;
    return Status::Ok();
  }
}

Status CudaEngine::EndLaunch(Pool& pool, Lane& lane, std::span<const Flight> flights, bool enqueued,
                             const Status& status) {
  lane.launching = false;
  pool.changed.notify_all();
  if (!enqueued) {
    for (const Flight& flight : flights) GiveBack(pool, flight);
    return status;
  }
  if (pool.stopped) return CheckOpen(pool);  // nobody polls; the device may still write the records
  lane.last_launch = lane.tail;
  for (const Flight& flight : flights) lane.Add(flight);
  return Status::Ok();
}

void CudaEngine::GiveBack(Pool& pool, const Flight& flight) const {
  pool.free.push_back(flight.place);
  if (flight.list != nullptr && --flight.list->in_flight == 0) flight.list->bound = nullptr;
}

Status CudaEngine::HealthAfter(const Status& status, int device) const {
  return status.ok() ? Status::Ok() : api_->Health(device);
}

bool CudaEngine::GrowRecords(Pool& pool, std::size_t wanted) {
  pool.mutex.AssertHeld();
  if (pool.growing) {
    pool.changed.wait(pool.mutex);
    return true;
  }
  if (pool.records >= pool.records_max) return false;
  const auto more = std::max<std::size_t>(pool.records, wanted - pool.free.size());
  const auto count =
      static_cast<std::uint32_t>(std::min<std::size_t>(more, pool.records_max - pool.records));
  if (!AddRecords(pool, count).ok())
    pool.records_max = pool.records;  // it would not help to ask again
  return true;
}

bool CudaEngine::GrowLists(Pool& pool, std::size_t bytes) {
  pool.mutex.AssertHeld();
  if (pool.growing) {
    pool.changed.wait(pool.mutex);
    return true;
  }
  if (bytes > ListBytes()) {
    if (pool.large_lists >= pool.large_lists_max) return false;
    if (AddLists(pool, 1, std::bit_ceil(bytes)).ok()) {
      ++pool.large_lists;
    } else {
      pool.large_lists_max = pool.large_lists;
    }
    return true;
  }
  const std::size_t lists = pool.lists.size() - pool.large_lists;
  if (lists >= pool.lists_max) return false;
  if (!AddLists(pool, std::min(lists, pool.lists_max - lists), ListBytes()).ok())
    pool.lists_max = lists;
  return true;
}

// The analysis cannot follow a mutex of the caller's that is released in between.
Status CudaEngine::Allocate(Pool& pool,
                            std::span<const Wanted> wanted) STATCOLLECT_NO_THREAD_SAFETY_ANALYSIS {
  pool.growing = true;
  pool.mutex.unlock();
  Status status;
  for (const Wanted& each : wanted) {
    if (each.bytes == 0 || !status.ok()) continue;
    const auto memory = each.on_device ? api_->AllocateOnDevice(pool.device, each.bytes)
                                       : api_->AllocateOnHost(pool.device, each.bytes);
    status = memory.status();
    if (memory.ok()) *each.memory = *memory;
  }
  pool.mutex.lock();
  pool.growing = false;
  pool.changed.notify_all();
  for (const Wanted& each : wanted) {
    if (*each.memory != nullptr) pool.memory.emplace_back(each.on_device, *each.memory);
  }
  return status;
}

Status CudaEngine::AddRecords(Pool& pool, std::uint32_t count) {
  void *records = nullptr, *samples = nullptr, *rows = nullptr;
  const std::size_t words = ExponentWords(options_.exponents);
  const Wanted wanted[] = {
      {false, sizeof(Record) * count, &records},
      {false, sizeof(double) * options_.samples * count, &samples},
      {false, options_.exponents == 0 ? 0 : sizeof(std::uint64_t) * words * count, &rows},
  };
  STATCOLLECT_RETURN_IF_ERROR(Allocate(pool, wanted));
  for (std::uint32_t i = count; i-- > 0;) {
    Place place;
    place.record = static_cast<Record*>(records) + i;
    place.record->ready = 0;
    if (samples != nullptr)
      place.samples = static_cast<double*>(samples) + std::size_t{i} * options_.samples;
    if (rows != nullptr) {
      place.exponents = static_cast<std::uint64_t*>(rows) + i * words;
      *place.exponents = 0;
    }
    pool.free.push_back(place);
  }
  pool.records += count;
  return Status::Ok();
}

std::size_t CudaEngine::ListBytes() const {
  const std::size_t records = std::max(options_.records, options_.records_max);
  return sizeof(Task) * std::min<std::size_t>(kListTasks, records);
}

Status CudaEngine::AddLists(Pool& pool, std::size_t count, std::size_t bytes) {
  void *host = nullptr, *device = nullptr;
  const Wanted wanted[] = {{false, bytes * count, &host}, {true, bytes * count, &device}};
  STATCOLLECT_RETURN_IF_ERROR(Allocate(pool, wanted));
  for (std::size_t i = 0; i < count; ++i) {
    pool.lists.push_back({.host = static_cast<unsigned char*>(host) + i * bytes,
                          .device = static_cast<unsigned char*>(device) + i * bytes,
                          .bytes = bytes});
  }
  return Status::Ok();
}

CudaEngine::Flight CudaEngine::TakeRecord(Pool& pool, DType dtype, const Output& output,
                                          void* cookie, Task* task) const {
  Flight flight{.place = pool.free.back(),
                .ticket = pool.next_ticket++,
                .numel = Numel(dtype, *task),
                .output = output,
                .cookie = cookie};
  pool.free.pop_back();
  task->record = flight.place.record;
  task->ticket = flight.ticket;
  if (output.samples.empty()) return flight;
  task->samples = flight.place.samples;
  task->sample_count = static_cast<std::uint32_t>(
      std::min<std::uint64_t>({output.samples.size(), options_.samples, task->components}));
  flight.samples = task->sample_count;
  return flight;
}

Status CudaEngine::CountExponents(const Pool& pool, const Lane& lane, DType dtype, const Task& task,
                                  const Flight& flight, void* stream) const {
  if (flight.output.exponents.empty()) return Status::Ok();
  ExponentLaunch launch;
  launch.task = task;
  launch.lowest = options_.exponent_lowest;
  launch.bins = options_.exponents;
  launch.scratch = lane.exponents;
  launch.row = flight.place.exponents;
  launch.ticket = task.ticket;
  return api_->EnqueueExponents(pool.device, dtype, launch, stream);
}

Status CudaEngine::EnqueueKernel(int device, DType dtype, const Launch& launch,
                                 std::span<const std::uint64_t> map, bool shards,
                                 void* stream) const {
  if (!shards) return api_->Enqueue(device, dtype, launch, stream);
  ShardLaunch of_shards = {launch, {}};
  if (map.size() <= kMapWordsInLaunch) std::copy(map.begin(), map.end(), of_shards.map);
  return api_->EnqueueShards(device, dtype, of_shards, stream);
}

Status CudaEngine::Enqueue(const CpuTensor& tensor, int device, void* stream, const Output& output,
                           void* cookie, const Placement* placement) {
  Listed listed;
  if (placement != nullptr)
    STATCOLLECT_RETURN_IF_ERROR(MakeIndexMap(tensor, *placement, &listed.map));
  const Item item = {tensor, output, cookie, placement};
  if (listed.map.size() <= kMapWordsInLaunch) return EnqueueAlone(item, listed.map, device, stream);
  // The map goes the way of a list's.
  Task task;
  STATCOLLECT_RETURN_IF_ERROR(MakeTask(tensor, &task));
  listed.item = &item;
  Status status;
  const auto refused = [&](void*, const Status& why) { status = why; };
  if (TryList(std::span(&listed, 1), device, stream, refused) == 1) return status;
  Pool& pool = PoolOf(device);
  MutexLock lock(pool.mutex);
  const Status open = CheckOpen(pool);
  return open.ok() ? TooMany() : open;
}

Status CudaEngine::EnqueueAlone(const Item& item, std::span<const std::uint64_t> map, int device,
                                void* stream) {
  const DType dtype = item.tensor.dtype;
  Task task;
  STATCOLLECT_RETURN_IF_ERROR(MakeTask(item.tensor, &task));
  Pool& pool = PoolOf(device);
  Lane* lane = nullptr;
  Flight flight;
  {
    MutexLock lock(pool.mutex);
    STATCOLLECT_RETURN_IF_ERROR(BeginLaunch(pool, stream, 1, &lane));
    flight = TakeRecord(pool, dtype, item.output, item.cookie, &task);
  }
  task.scratch = ScratchAt(lane->scratch, task.units);
  Launch launch;
  launch.tables = pool.tables;
  launch.units = task.units;
  launch.width = LaunchWidth(static_cast<std::uint32_t>(item.output.sketch.size()));
  launch.only = task;
  Status status = EnqueueKernel(device, dtype, launch, map, !map.empty(), stream);
  const bool enqueued = status.ok();
  if (enqueued) Require(CountExponents(pool, *lane, dtype, task, flight, stream), &flight, &status);
  const Status health = HealthAfter(status, device);
  MutexLock lock(pool.mutex);
  if (pool.failure.ok()) pool.failure = health;
  return EndLaunch(pool, *lane, std::span(&flight, 1), enqueued, status);
}

// A part of the flight that failed: the rest is worth nothing, but the device still writes its
// record.
void CudaEngine::Require(const Status& part, Flight* flight, Status* status) {
  if (part.ok()) return;
  flight->broken = true;
  flight->output.exponents = {};
  *status = part;
}

void CudaEngine::EnqueueList(std::span<const Item> items, int device, void* stream,
                             const std::function<void(void*, const Status&)>& refused) {
  const auto one_by_one = [&](const Item& item) {
    const Status status =
        Enqueue(item.tensor, device, stream, item.output, item.cookie, item.placement);
    if (!status.ok()) refused(item.cookie, status);
  };
  std::map<std::pair<DType, bool>, std::vector<Listed>> kinds;  // whether they are shards
  for (const Item& item : items) {
    Listed listed = {&item, {}};
    const Status mapped = item.placement == nullptr
                              ? Status::Ok()
                              : MakeIndexMap(item.tensor, *item.placement, &listed.map);
    if (!mapped.ok()) {
      refused(item.cookie, mapped);
      continue;
    }
    kinds[{item.tensor.dtype, !listed.map.empty()}].push_back(std::move(listed));
  }
  for (const auto& [kind, of_kind] : kinds) {
    std::size_t next = 0;
    while (next < of_kind.size()) {
      const std::size_t launched =
          of_kind.size() - next > 1
              ? TryList(std::span(of_kind).subspan(next), device, stream, refused)
              : 0;
      if (launched == 0) one_by_one(*of_kind[next].item);
      next += std::max<std::size_t>(launched, 1);
    }
  }
}

CudaEngine::ListPlan CudaEngine::PlanList(std::span<const Listed> items) const {
  const Item& first = *items.front().item;
  ListPlan plan;
  plan.dtype = first.tensor.dtype;
  plan.width = LaunchWidth(static_cast<std::uint32_t>(first.output.sketch.size()));
  plan.shards = !items.front().map.empty();
  plan.maps_before.push_back(0);
  const std::size_t most = std::min(items.size(), kListTasks);
  std::uint32_t units = 0;
  while (plan.tasks.size() < most) {
    const Listed& next = items[plan.tasks.size()];
    const std::size_t words = plan.maps_before.back() + next.map.size();
    const std::size_t bytes =
        sizeof(Task) * (plan.tasks.size() + 1) + sizeof(std::uint64_t) * words;
    Task task;
    if (!MakeTask(next.item->tensor, &task).ok() || !plan.scratch.Fits(task.units) ||
        units + task.units > kUnitsMax || (!plan.tasks.empty() && bytes > ListBytes()))
      break;
    plan.before.push_back(plan.scratch);
    plan.scratch.Add(task.units);
    task.first_unit = units;
    units += task.units;
    plan.tasks.push_back(task);
    plan.maps_before.push_back(words);
  }
  return plan;
}

CudaEngine::List* CudaEngine::FreeList(Pool& pool, void* stream, std::size_t bytes) {
  do {
    for (List& list : pool.lists) {
      if (list.in_flight == 0 && list.bytes >= bytes &&
          (list.bound == nullptr || list.bound == LaneKey(stream)))
        return &list;
    }
  } while (GrowLists(pool, bytes));
  return nullptr;
}

std::size_t CudaEngine::TryList(std::span<const Listed> items, int device, void* stream,
                                const std::function<void(void*, const Status&)>& refused) {
  ListPlan plan = PlanList(items);
  const std::size_t least = std::min<std::size_t>(items.size(), 2);
  if (plan.tasks.size() < least) return 0;
  Pool& pool = PoolOf(device);
  Lane* lane = nullptr;
  List* list = nullptr;
  std::vector<Flight> flights;
  {
    MutexLock lock(pool.mutex);
    if (!BeginLaunch(pool, stream, plan.tasks.size(), &lane).ok()) return 0;
    plan.tasks.resize(std::min(plan.tasks.size(), pool.free.size()));
    const std::size_t count = plan.tasks.size();
    if (count >= least) list = FreeList(pool, stream, plan.bytes());
    if (list == nullptr) {
      (void)EndLaunch(pool, *lane, {}, false, Status::Ok());
      return 0;
    }
    list->in_flight = count;
    for (std::size_t i = 0; i < count; ++i) {
      const Item& item = *items[i].item;
      flights.push_back(TakeRecord(pool, plan.dtype, item.output, item.cookie, &plan.tasks[i]));
      flights.back().list = list;
    }
  }
  WriteList(*lane, *list, plan, items);
  bool copied = false, enqueued = false;
  const Status status = LaunchList(pool, *lane, *list, plan, flights, stream, &copied, &enqueued);
  const Status health = HealthAfter(status, device);
  Status ended;
  {
    MutexLock lock(pool.mutex);
    if (pool.failure.ok()) pool.failure = health;
    ended = EndLaunch(pool, *lane, flights, enqueued, status);
    if (copied && !enqueued) list->bound = LaneKey(stream);
  }
  for (const Flight& flight : flights) {
    if (!ended.ok()) refused(flight.cookie, ended);
  }
  return flights.size();
}

void CudaEngine::WriteList(const Lane& lane, const List& list, const ListPlan& plan,
                           std::span<const Listed> items) {
  auto* const tasks = reinterpret_cast<Task*>(list.host);
  const std::size_t maps_at = sizeof(Task) * plan.tasks.size();
  for (std::size_t i = 0; i < plan.tasks.size(); ++i) {
    tasks[i] = plan.tasks[i];
    tasks[i].scratch = plan.scratch.At(lane.scratch, plan.before[i], plan.width);
    if (!plan.shards) continue;
    const std::size_t at = maps_at + sizeof(std::uint64_t) * plan.maps_before[i];
    std::copy(items[i].map.begin(), items[i].map.end(),
              reinterpret_cast<std::uint64_t*>(list.host + at));
    tasks[i].map = reinterpret_cast<const std::uint64_t*>(list.device + at);
  }
}

Status CudaEngine::LaunchList(const Pool& pool, const Lane& lane, const List& list,
                              const ListPlan& plan, std::span<Flight> flights, void* stream,
                              bool* copied, bool* enqueued) const {
  Launch launch;
  launch.tables = pool.tables;
  launch.tasks = reinterpret_cast<const Task*>(list.device);
  launch.task_count = static_cast<std::uint32_t>(flights.size());
  launch.units = plan.tasks.back().first_unit + plan.tasks.back().units;
  launch.width = plan.width;
  STATCOLLECT_RETURN_IF_ERROR(
      api_->CopyInStream(pool.device, list.device, list.host, plan.bytes(), stream));
  *copied = true;
  Status status = EnqueueKernel(pool.device, plan.dtype, launch, {}, plan.shards, stream);
  *enqueued = status.ok();
  const auto* const tasks = reinterpret_cast<const Task*>(list.host);
  for (std::size_t i = 0; i < flights.size() && *enqueued; ++i) {
    Require(CountExponents(pool, lane, plan.dtype, tasks[i], flights[i], stream), &flights[i],
            &status);
  }
  return status;
}

// Copies a ready result to where it belongs.
void CudaEngine::Land(const Flight& flight) const {
  const Record& record = *flight.place.record;
  *flight.output.stats =
      FinishRecord(record.totals, record.sums, flight.numel, flight.output.sketch);
  if (flight.output.sample_count != nullptr) *flight.output.sample_count = flight.samples;
  const auto& exponents = flight.output.exponents;
  if (!exponents.empty())
    std::copy_n(flight.place.exponents + 1, exponents.size(), exponents.begin());
  if (flight.samples > 0)
    std::copy_n(flight.place.samples, flight.samples, flight.output.samples.begin());
}

}  // namespace statcollect::stats::cuda
