// The engine's part that launches: see engine.h.
#include <algorithm>
#include <atomic>
#include <map>
#include <type_traits>
#include <utility>

#include "agent/stats/cuda/engine_parts.h"
#include "agent/stats/cuda/plan.h"

namespace statcollect::stats::cuda {
namespace {

Status TooMany() { return {Code::kResourceExhausted, "observe a CUDA tensor: too many are in flight"}; }

}  // namespace

// Tasks of the first tensors of a list, as many as share one launch. Their records are missing.
struct CudaEngine::ListPlan {
  DType dtype = DType::kUnspecified;
  std::uint32_t width = 0;
  std::vector<Task> tasks;
  std::vector<SharedScratch> before;  // each task's place
  SharedScratch scratch;
};

bool CudaEngine::IsReady(const Flight& flight) const {
  const auto has_come = [&](std::uint64_t& ready) {
    return std::atomic_ref(ready).load(std::memory_order_acquire) >= flight.ticket;  // or of a later flight
  };
  return has_come(flight.place.record->ready) &&
         (flight.output.exponents.empty() || has_come(*flight.place.exponents));
}

// Whether a kernel may still use the lane's scratch. Tensors of one launch become ready in any order.
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
  const auto count = static_cast<std::uint32_t>(std::min<std::size_t>(more, pool.records_max - pool.records));
  if (!AddRecords(pool, count).ok()) pool.records_max = pool.records;  // it would not help to ask again
  return true;
}

bool CudaEngine::GrowLists(Pool& pool) {
  pool.mutex.AssertHeld();
  if (pool.growing) {
    pool.changed.wait(pool.mutex);
    return true;
  }
  if (pool.lists.size() >= pool.lists_max) return false;
  const std::size_t count = std::min(pool.lists.size(), pool.lists_max - pool.lists.size());
  if (!AddLists(pool, count).ok()) pool.lists_max = pool.lists.size();
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
    if (samples != nullptr) place.samples = static_cast<double*>(samples) + std::size_t{i} * options_.samples;
    if (rows != nullptr) {
      place.exponents = static_cast<std::uint64_t*>(rows) + i * words;
      *place.exponents = 0;
    }
    pool.free.push_back(place);
  }
  pool.records += count;
  return Status::Ok();
}

Status CudaEngine::AddLists(Pool& pool, std::size_t count) {
  void *host = nullptr, *device = nullptr;
  const std::size_t tasks = std::min<std::size_t>(kListTasks, pool.records_max);
  const Wanted wanted[] = {{false, sizeof(Task) * tasks * count, &host},
                           {true, sizeof(Task) * tasks * count, &device}};
  STATCOLLECT_RETURN_IF_ERROR(Allocate(pool, wanted));
  for (std::size_t i = 0; i < count; ++i) {
    pool.lists.push_back(
        {.host = static_cast<Task*>(host) + i * tasks, .device = static_cast<Task*>(device) + i * tasks});
  }
  return Status::Ok();
}

CudaEngine::Flight CudaEngine::TakeRecord(Pool& pool, DType dtype, const Output& output, void* cookie,
                                          Task* task) const {
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

Status CudaEngine::Enqueue(const CpuTensor& tensor, int device, void* stream, const Output& output,
                           void* cookie) {
  Task task;
  STATCOLLECT_RETURN_IF_ERROR(MakeTask(tensor, &task));
  Pool& pool = PoolOf(device);
  Lane* lane = nullptr;
  Flight flight;
  {
    MutexLock lock(pool.mutex);
    STATCOLLECT_RETURN_IF_ERROR(BeginLaunch(pool, stream, 1, &lane));
    flight = TakeRecord(pool, tensor.dtype, output, cookie, &task);
  }
  task.scratch = ScratchAt(lane->scratch, task.units);
  Launch launch;
  launch.tables = pool.tables;
  launch.units = task.units;
  launch.width = LaunchWidth(static_cast<std::uint32_t>(output.sketch.size()));
  launch.only = task;
  Status status = api_->Enqueue(device, tensor.dtype, launch, stream);
  const bool enqueued = status.ok();
  if (enqueued) Require(CountExponents(pool, *lane, tensor.dtype, task, flight, stream), &flight, &status);
  const Status health = HealthAfter(status, device);
  MutexLock lock(pool.mutex);
  if (pool.failure.ok()) pool.failure = health;
  return EndLaunch(pool, *lane, std::span(&flight, 1), enqueued, status);
}

// A part of the flight that failed: the rest is worth nothing, but the device still writes its record.
void CudaEngine::Require(const Status& part, Flight* flight, Status* status) {
  if (part.ok()) return;
  flight->broken = true;
  flight->output.exponents = {};
  *status = part;
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
          of_kind.size() - next > 1 ? TryList(std::span(of_kind).subspan(next), device, stream, refused) : 0;
      if (launched == 0) one_by_one(*of_kind[next]);
      next += std::max<std::size_t>(launched, 1);
    }
  }
}

CudaEngine::ListPlan CudaEngine::PlanList(std::span<const Item* const> items) {
  ListPlan plan;
  plan.dtype = items.front()->tensor.dtype;
  plan.width = LaunchWidth(static_cast<std::uint32_t>(items.front()->output.sketch.size()));
  const std::size_t most = std::min(items.size(), kListTasks);
  std::uint32_t units = 0;
  while (plan.tasks.size() < most) {
    Task task;
    if (!MakeTask(items[plan.tasks.size()]->tensor, &task).ok() || !plan.scratch.Fits(task.units) ||
        units + task.units > kUnitsMax)
      break;
    plan.before.push_back(plan.scratch);
    plan.scratch.Add(task.units);
    task.first_unit = units;
    units += task.units;
    plan.tasks.push_back(task);
  }
  return plan;
}

CudaEngine::List* CudaEngine::FreeList(Pool& pool, void* stream) {
  do {
    for (List& list : pool.lists) {
      if (list.in_flight == 0 && (list.bound == nullptr || list.bound == LaneKey(stream))) return &list;
    }
  } while (GrowLists(pool));
  return nullptr;
}

std::size_t CudaEngine::TryList(std::span<const Item* const> items, int device, void* stream,
                                const std::function<void(void*, const Status&)>& refused) {
  ListPlan plan = PlanList(items);
  if (plan.tasks.size() < 2) return 0;
  Pool& pool = PoolOf(device);
  Lane* lane = nullptr;
  List* list = nullptr;
  std::vector<Flight> flights;
  {
    MutexLock lock(pool.mutex);
    if (!BeginLaunch(pool, stream, plan.tasks.size(), &lane).ok()) return 0;
    list = FreeList(pool, stream);
    const std::size_t count = list == nullptr ? 0 : std::min(plan.tasks.size(), pool.free.size());
    if (count < 2) {
      (void)EndLaunch(pool, *lane, {}, false, Status::Ok());
      return 0;
    }
    plan.tasks.resize(count);
    list->in_flight = count;
    for (std::size_t i = 0; i < count; ++i) {
      flights.push_back(TakeRecord(pool, plan.dtype, items[i]->output, items[i]->cookie, &plan.tasks[i]));
      flights.back().list = list;
    }
  }
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

Status CudaEngine::LaunchList(const Pool& pool, const Lane& lane, const List& list, const ListPlan& plan,
                              std::span<Flight> flights, void* stream, bool* copied, bool* enqueued) const {
  for (std::size_t i = 0; i < flights.size(); ++i) {
    list.host[i] = plan.tasks[i];
    list.host[i].scratch = plan.scratch.At(lane.scratch, plan.before[i], plan.width);
  }
  Launch launch;
  launch.tables = pool.tables;
  launch.tasks = list.device;
  launch.task_count = static_cast<std::uint32_t>(flights.size());
  launch.units = plan.tasks.back().first_unit + plan.tasks.back().units;
  launch.width = plan.width;
  STATCOLLECT_RETURN_IF_ERROR(
      api_->CopyInStream(pool.device, list.device, list.host, sizeof(Task) * flights.size(), stream));
  *copied = true;
  Status status = api_->Enqueue(pool.device, plan.dtype, launch, stream);
  *enqueued = status.ok();
  for (std::size_t i = 0; i < flights.size() && *enqueued; ++i) {
    Require(CountExponents(pool, lane, plan.dtype, list.host[i], flights[i], stream), &flights[i], &status);
  }
  return status;
}

// Copies a ready result to where it belongs.
void CudaEngine::Land(const Flight& flight) const {
  const Record& record = *flight.place.record;
  *flight.output.stats = FinishRecord(record.totals, record.sums, flight.numel, flight.output.sketch);
  if (flight.output.sample_count != nullptr) *flight.output.sample_count = flight.samples;
  const auto& exponents = flight.output.exponents;
  if (!exponents.empty()) std::copy_n(flight.place.exponents + 1, exponents.size(), exponents.begin());
  if (flight.samples > 0) std::copy_n(flight.place.samples, flight.samples, flight.output.samples.begin());
}

}  // namespace statcollect::stats::cuda
