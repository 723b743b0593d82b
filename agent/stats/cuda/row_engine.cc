#include "agent/stats/cuda/row_engine.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <string>
#include <utility>

#include "common/names.h"

namespace statcollect::stats::cuda {
namespace {

constexpr std::size_t kSmallestChunk = 64;     // rows
constexpr std::size_t kAllocatedRows = 16384;  // at once

constexpr std::size_t ChunkBytes(std::size_t rows) {
  return rows * (sizeof(RowRecord) + sizeof(std::int64_t));
}

}  // namespace

RowLaunch MakeRowLaunch(const CpuTensor& rows, std::uint64_t first, const RowChoice& choice) {
  const auto bytes = static_cast<std::int64_t>(DTypeBytes(rows.dtype));
  RowLaunch launch;
  launch.parts = IsComplex(rows.dtype) ? 2 : 1;
  launch.row_bytes = (rows.strides.empty() ? rows.shape[1] : rows.strides[0]) * bytes;
  launch.element_bytes = (rows.strides.empty() ? 1 : rows.strides[1]) * bytes;
  launch.data = static_cast<const unsigned char*>(rows.data);
  if (choice.index != nullptr) {
    launch.index = choice.index + choice.begin;
  } else if (launch.data != nullptr) {
    launch.data += static_cast<std::int64_t>(choice.begin) * launch.row_bytes;
  }
  launch.rows = static_cast<std::uint32_t>(choice.count);
  launch.components = static_cast<std::uint64_t>(rows.shape[1]) * launch.parts;
  launch.first = first;
  return launch;
}

RowStats ToRowStats(const RowRecord& record) {
  RowStats stats{.l2 = record.l2, .hash = record.hash};
  std::copy_n(record.sketch, kRowSums, stats.sketch.begin());
  return stats;
}

RowEngine::~RowEngine() {
  Abandon();
  MutexLock lock(mutex_);
  if (lost_) return;
  for (const auto& [device, tables] : tables_) api_->FreeOnDevice(device, tables);
  for (const auto& [device, memory] : memory_) api_->FreeOnHost(device, memory);
}

Status RowEngine::Check(const CpuTensor& rows, int device, void* stream) {
  if (api_ == nullptr) {
    return {Code::kUnimplemented,
            "rows of a CUDA matrix: this build of the library has no CUDA engine; expected one "
            "configured with STATCOLLECT_CUDA=ON; copy the matrix to the CPU first"};
  }
  STATCOLLECT_RETURN_IF_ERROR(api_->Open(device));
  if (api_->IsCapturing(device, stream)) {
    return {Code::kFailedPrecondition,
            "rows of a CUDA matrix: its stream is being captured into a CUDA graph, where nothing "
            "is computed yet; expected a stream that runs; record after a replay"};
  }
  {
    MutexLock lock(mutex_);
    KernelTables*& tables = tables_[device];
    if (tables == nullptr) {
      const auto memory = api_->AllocateOnDevice(device, sizeof(kKernelTables));
      if (!memory.ok()) return memory.status();
      const Status copied =
          api_->CopyToDevice(device, *memory, &kKernelTables, sizeof(kKernelTables));
      if (!copied.ok()) {
        api_->FreeOnDevice(device, *memory);
        return copied;
      }
      tables = static_cast<KernelTables*>(*memory);
    }
  }
  return rows.data == nullptr ? Status::Ok() : api_->CheckMemory(device, rows.data);
}

Result<RowEngine::Chunk> RowEngine::TakeChunkLocked(int device, std::size_t count) {
  const std::size_t rows = std::bit_ceil(std::max(count, kSmallestChunk));
  std::vector<Chunk>& free = free_[rows];
  if (free.empty()) {
    if (rows_ + kAllocatedRows > kRowsInFlightMax) {
      return Status(Code::kResourceExhausted, "record rows: " + std::to_string(kRowsInFlightMax) +
                                                  " rows of CUDA matrices are in flight already");
    }
    const auto memory = api_->AllocateOnHost(device, ChunkBytes(kAllocatedRows));
    if (!memory.ok()) return Status(Code::kResourceExhausted, memory.status().message());
    memory_.emplace_back(device, *memory);
    rows_ += kAllocatedRows;
    for (std::size_t at = 0; at < kAllocatedRows; at += rows) {
      Chunk chunk{.memory = static_cast<unsigned char*>(*memory) + ChunkBytes(at), .rows = rows};
      for (std::size_t row = 0; row < rows; ++row) chunk.records()[row].ready = 0;
      free.push_back(chunk);
    }
  }
  const Chunk chunk = free.back();
  free.pop_back();
  return chunk;
}

Status RowEngine::Enqueue(const CpuTensor& rows, std::uint64_t first, const RowChoice& choice,
                          int device, void* stream, std::uint64_t cookie) {
  RowLaunch launch = MakeRowLaunch(rows, first, choice);
  std::list<Flight>::iterator flight;
  {
    MutexLock lock(mutex_);
    if (abandoned_) return {Code::kAborted, "record rows: the agent is closed"};
    const auto chunk = TakeChunkLocked(device, choice.count);
    if (!chunk.ok()) return chunk.status();
    flight = flights_.insert(flights_.end(), {.device = device,
                                              .chunk = *chunk,
                                              .count = choice.count,
                                              .ticket = ++tickets_,
                                              .cookie = cookie});
    launch.tables = tables_.at(device);
    launch.records = flight->chunk.records();
    launch.ticket = flight->ticket;
  }
  // Only this thread takes the flight away until it is enqueued.
  if (launch.index != nullptr) {
    std::copy_n(launch.index, choice.count, flight->chunk.index());
    launch.index = flight->chunk.index();
  }
  const Status status = api_->EnqueueRows(device, rows.dtype, launch, stream);
  MutexLock lock(mutex_);
  if (status.ok()) {
    flight->enqueued = true;
    return status;
  }
  free_[flight->chunk.rows].push_back(flight->chunk);
  flights_.erase(flight);
  return status;
}

bool RowEngine::HasArrived(Flight& flight) {
  while (flight.arrived < flight.count &&
         std::atomic_ref(flight.chunk.records()[flight.arrived].ready)
                 .load(std::memory_order_acquire) == flight.ticket)
    ++flight.arrived;
  return flight.arrived == flight.count;
}

std::list<RowEngine::Flight> RowEngine::TakeFailedLocked(TimePoint now,
                                                         std::map<int, Status>* failures) {
  std::list<Flight> failed;
  if (flights_.empty() || now - asked_ < kHealthInterval) return failed;
  asked_ = now;
  for (auto flight = flights_.begin(); flight != flights_.end();) {
    const auto next = std::next(flight);
    if (flight->enqueued) {
      const auto known = failures->find(flight->device);
      const Status health =
          known != failures->end()
              ? known->second
              : failures->emplace(flight->device, api_->Health(flight->device)).first->second;
      if (!health.ok()) failed.splice(failed.end(), flights_, flight);
    }
    flight = next;
  }
  lost_ = lost_ || !failed.empty();
  return failed;
}

std::size_t RowEngine::Poll(TimePoint now, const Done& done) {
  std::list<Flight> landed, failed;
  std::map<int, Status> health;
  {
    MutexLock lock(mutex_);
    for (auto flight = flights_.begin(); flight != flights_.end();) {
      const auto next = std::next(flight);
      if (flight->enqueued && HasArrived(*flight)) landed.splice(landed.end(), flights_, flight);
      flight = next;
    }
    if (landed.empty()) failed = TakeFailedLocked(now, &health);
  }
  for (const Flight& flight : landed)
    done(flight.cookie, {flight.chunk.records(), flight.count}, Status::Ok());
  for (const Flight& flight : failed) done(flight.cookie, {}, health.at(flight.device));
  MutexLock lock(mutex_);
  for (const Flight& flight : landed) free_[flight.chunk.rows].push_back(flight.chunk);
  return flights_.size();
}

void RowEngine::Abandon() {
  MutexLock lock(mutex_);
  abandoned_ = true;
  lost_ = lost_ || !flights_.empty();
  std::erase_if(flights_, [](const Flight& flight) { return flight.enqueued; });
}

}  // namespace statcollect::stats::cuda
