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

Status Broken() {
  return {Code::kInternal, "observe a CUDA tensor: CUDA refused a part of the work"};
}

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
                         [&](Lane& lane) { return IsBusy(lane); });
    };
    while (pool->failure.ok() && in_flight() && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    if (Graphs* const graphs = pool->graphs.get(); graphs != nullptr) {
      std::erase_if(graphs->lanes, [graphs](const auto& lane) {
        if (lane->gone->load()) {
          graphs->free_chunks.merge(lane->chunks);
          graphs->free_maps.merge(lane->maps);
        }
        return lane->gone->load();
      });
    }
    if (!pool->failure.ok() || in_flight() || pool->has_graphs()) continue;
    Free(*pool);
  }
}

void CudaEngine::Free(Pool& pool) {
  for (const auto& [on_device, memory] : pool.memory) {
    if (on_device) {
      api_->FreeOnDevice(pool.device, memory);
    } else {
      api_->FreeOnHost(pool.device, memory);
    }
  }
  if (pool.graphs != nullptr) FreeGraphs(pool.device, *pool.graphs);
}

void CudaEngine::FreeGraphs(int device, const Graphs& graphs) {
  if (graphs.control != nullptr) api_->FreeOnDevice(device, graphs.control);
  if (graphs.log != nullptr) api_->FreeOnDevice(device, graphs.log);
  if (graphs.rows != nullptr) api_->FreeOnHost(device, graphs.rows);
  if (graphs.samples != nullptr) api_->FreeOnHost(device, graphs.samples);
  for (const auto& [bytes, chunk] : graphs.free_chunks) api_->FreeOnDevice(device, chunk);
  for (const auto& [bytes, map] : graphs.free_maps) api_->FreeOnDevice(device, map);
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

Status CudaEngine::Fill(Pool& pool) {
  const int device = pool.device;
  STATCOLLECT_RETURN_IF_ERROR(api_->Open(device));
  const auto allocate = [&](std::size_t bytes, auto** out) -> Status {
    const auto memory = api_->AllocateOnDevice(device, bytes);
    if (!memory.ok()) return memory.status();
    pool.memory.emplace_back(true, *memory);
    *out = static_cast<std::remove_reference_t<decltype(*out)>>(*memory);
    return Status::Ok();
  };
  const std::size_t scratch_bytes = (ScratchBytes(kUnitsMax, width_) + 255) / 256 * 256;
  const std::size_t exponent_words = ExponentWords(options_.exponents);
  unsigned char* scratch = nullptr;
  std::uint64_t* exponents = nullptr;
  STATCOLLECT_RETURN_IF_ERROR(allocate(sizeof(kKernelTables), &pool.tables));
  STATCOLLECT_RETURN_IF_ERROR(
      api_->CopyToDevice(device, pool.tables, &kKernelTables, sizeof(kKernelTables)));
  STATCOLLECT_RETURN_IF_ERROR(allocate(scratch_bytes * options_.lanes, &scratch));
  if (options_.exponents > 0) {
    STATCOLLECT_RETURN_IF_ERROR(
        allocate(exponent_words * sizeof(std::uint64_t) * options_.lanes, &exponents));
  }
  pool.lanes.resize(options_.lanes);
  for (std::uint32_t i = 0; i < options_.lanes; ++i) {
    pool.lanes[i].scratch = scratch + i * scratch_bytes;
    if (options_.exponents > 0) pool.lanes[i].exponents = exponents + i * exponent_words;
  }
  pool.records_max = std::max(options_.records, options_.records_max);
  pool.lists_max = kListsMax;
  MutexLock lock(pool.mutex);
  STATCOLLECT_RETURN_IF_ERROR(AddRecords(pool, options_.records));
  return AddLists(pool, kLists, ListBytes());
}

CudaEngine::Pool& CudaEngine::PoolOf(int device) {
  MutexLock lock(mutex_);
  return *pools_.at(device);
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
    bool ask = false;
    {
      MutexLock lock(pool.mutex);
      failure = pool.failure;
      for (Lane& lane : pool.lanes) {
        while (!lane.empty() && count < kPollBatch && IsReady(lane.At(lane.head)))
          ready[count++] = lane.At(lane.head++);
        waiting += lane.tail - lane.head;
      }
      if (failure.ok() && pool.has_graphs()) ++waiting;
      if (count > 0) {
        failure = Status::Ok();  // they are there
      } else if (!failure.ok()) {
        // Their records and scratch are lost: the device may still write them.
        for (Lane& lane : pool.lanes) {
          while (!lane.empty() && count < kPollBatch) ready[count++] = lane.At(lane.head++);
        }
        if (count == 0) return 0;
      } else if (waiting > 0 && now - pool.asked >= kHealthInterval) {
        pool.asked = now;
        ask = true;
      }
    }
    if (ask) {
      const Status health = api_->Health(pool.device);
      if (health.ok()) return waiting;
      MutexLock lock(pool.mutex);
      pool.failure = health;
      continue;
    }
    if (count == 0) return waiting;
    for (std::size_t i = 0; i < count; ++i) {
      const bool lands = failure.ok() && !ready[i].broken;
      if (lands) Land(ready[i]);
      done(ready[i].cookie, lands ? Status::Ok() : failure.ok() ? Broken() : failure);
    }
    if (!failure.ok()) continue;
    MutexLock lock(pool.mutex);
    for (std::size_t i = 0; i < count; ++i) GiveBack(pool, ready[i]);
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
        done(lane.At(lane.head).cookie,
             Status(Code::kAborted, "statistics of a CUDA tensor: cancelled"));
      }
    }
  }
}

}  // namespace statcollect::stats::cuda
