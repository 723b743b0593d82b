#include "agent/cuda/slots.h"

#include <algorithm>
#include <new>
#include <utility>
#include <vector>

namespace statcollect {

namespace {

stats::cuda::Output OutputOf(Slot* slot) {
  return {.stats = &slot->stats,
          .sketch = slot->sketch,
          .samples = slot->samples,
          .sample_count = &slot->sample_count,
          .exponents = slot->exponents == nullptr ? std::span<std::uint64_t>()
                                                  : std::span(*slot->exponents)};
}

}  // namespace

CudaSlots::CudaSlots(const stats::cuda::EngineOptions& options,
                     std::unique_ptr<stats::cuda::CudaApi> api, Recorder* recorder,
                     const Clock* clock)
    : recorder_(recorder), clock_(clock), engine_(options, std::move(api)) {}

Status CudaSlots::Fill(Slot* slot, const stats::CpuTensor& tensor, int device, void* stream,
                       const PlacementView* place) {
  const Status enqueued = engine_.Enqueue(tensor, device, stream, OutputOf(slot), slot, place);
  if (!enqueued.ok()) GiveUp(slot, enqueued);
  return enqueued.code() == Code::kUnimplemented ? enqueued : Status::Ok();
}

void CudaSlots::FillList(std::span<const Item> items, int device, void* stream,
                         std::size_t* unimplemented) {
  std::vector<stats::cuda::CudaEngine::Item> list;
  list.reserve(items.size());
  for (const Item& item : items) {
    list.push_back(
        {item.tensor, OutputOf(item.slot), item.slot, item.place ? &*item.place : nullptr});
  }
  *unimplemented = 0;
  engine_.EnqueueList(list, device, stream, [&](void* cookie, const Status& why) {
    if (why.code() == Code::kUnimplemented) ++*unimplemented;
    GiveUp(static_cast<Slot*>(cookie), why);
  });
}

void CudaSlots::GiveUp(Slot* slot, const Status& why) {
  switch (why.code()) {
    case Code::kResourceExhausted:
      return recorder_->GiveUp(slot, kDropBufferFull);
    case Code::kAborted:
      return recorder_->GiveUp(slot, kDropClosed);
    default:
      return recorder_->GiveUp(slot, kDropDeviceError);
  }
}

Status CudaSlots::AddToGraph(const GraphTensor& tensor, const stats::CpuTensor& data, int device,
                             void* stream, std::uint64_t step, bool wanted,
                             const PlacementView* place) {
  auto added = std::make_unique<InGraph>();
  added->tensor = tensor;
  InGraph* const cookie = added.get();
  MutexLock lock(mutex_);  // before Poll may ask for it
  const Status status =
      engine_.AddToGraph(data, device, stream, {step, wanted ? 1u : 0u}, recorder_->sketch(),
                         recorder_->samples(), cookie, &added->graph, place);
  if (!status.ok()) {
    if (status.code() == Code::kUnimplemented) return status;
    recorder_->graphs().MissReplayed(kDropGraphCapture);
    return Status::Ok();
  }
  Graph& graph = graphs_[added->graph];
  ++graph.tensors;
  ++graph.orders;
  Graph::Calls& calls = graph.calls[tensor.root];
  calls.first = std::min(calls.first, tensor.call);
  ++calls.count;
  in_graphs_.emplace(cookie, std::move(added));
  recorder_->WakeBatcher();
  return Status::Ok();
}

void CudaSlots::ReplaysIn(int device, void* stream) {
  MutexLock lock(mutex_);
  streams_[device] = stream;
}

std::uint64_t CudaSlots::Mark(Slot* gate, std::span<const int> devices, std::uint64_t step,
                              bool wanted) {
  std::uint64_t number = 0;
  std::vector<std::pair<int, void*>> streams;
  {
    MutexLock lock(mutex_);
    if (gate == nullptr) gateless_ = std::max(gateless_.load(), step);
    number = ++marks_;
    open_.push_back({number, gate, {devices.begin(), devices.end()}});
    for (const int device : devices) streams.emplace_back(device, streams_[device]);
  }
  for (const auto& [device, stream] : streams) {
    if (!engine_.MarkReplays(device, stream, {step, wanted ? 1u : 0u}, number))
      Reach(device, number);
  }
  if (devices.empty()) Reach(-1, number);
  return number;
}

void CudaSlots::Reach(int device, std::uint64_t number) {
  MutexLock lock(mutex_);
  for (OpenMark& mark : open_) {
    if (mark.number > number) break;
    mark.devices.erase(device);
  }
  // One after the other: what belongs to a gate has landed only if what belongs to those before
  // has.
  while (!open_.empty() && open_.front().devices.empty()) {
    if (open_.front().gate != nullptr) recorder_->graphs().OpenGate(open_.front().gate);
    open_.pop_front();
  }
  marks_changed_.notify_all();
}

bool CudaSlots::WaitMarked(std::uint64_t mark, std::chrono::steady_clock::time_point deadline) {
  MutexLock lock(mutex_);
  return marks_changed_.wait_until(mutex_, deadline, [&]() STATCOLLECT_REQUIRES(mutex_) {
    return open_.empty() || open_.front().number > mark;
  });
}

void CudaSlots::DropLate() {
  floor_ = std::max(floor_, gateless_.load());
  while (!landed_.empty() && landed_.begin()->first < floor_) {
    recorder_->graphs().LoseReplayed(kDropBufferFull);
    PopReplayed();
  }
}

std::size_t CudaSlots::Poll() noexcept {
  const auto done = [this](void* cookie, const Status& status) {
    auto* const slot = static_cast<Slot*>(cookie);
    if (status.ok()) {
      recorder_->Commit(slot);
    } else {
      recorder_->GiveUp(slot, kDropDeviceError);
    }
  };
  try {
    const std::size_t in_flight = engine_.Poll(clock_->Now(), done, this);
    DropLate();
    return in_flight;
  } catch (const std::bad_alloc&) {  // of a replay's record
    recorder_->graphs().MissReplayed(kDropBufferFull);
    return 1;
  }
}

void CudaSlots::Replayed(void* cookie, std::uint64_t step, const TensorStats& stats,
                         std::span<const double> sketch, std::span<const double> samples) {
  if (step < floor_) return recorder_->graphs().MissReplayed(kDropGraphReplay);
  if (landed_count_ >= recorder_->ring().capacity())
    return recorder_->graphs().MissReplayed(kDropBufferFull);
  Replay replay;
  {
    MutexLock lock(mutex_);
    InGraph& in_graph = *static_cast<InGraph*>(cookie);
    const Graph& graph = graphs_.at(in_graph.graph);
    const Graph::Calls& calls = graph.calls.at(in_graph.tensor.root);
    in_graph.replays = in_graph.step == step ? in_graph.replays : 0;
    in_graph.step = step;
    const std::uint32_t before = in_graph.replays++;
    const std::uint32_t call = in_graph.tensor.call - calls.first + before * calls.count;
    if (!recorder_->graphs().Replay(in_graph.tensor, call, calls.count, step, &replay)) return;
    replay.order += before * graph.orders;
  }
  replay.stats = stats;
  replay.values.assign(sketch.begin(), sketch.end());
  replay.values.insert(replay.values.end(), samples.begin(), samples.end());
  replay.sketch = std::span(replay.values).first(sketch.size());
  replay.samples = std::span(replay.values).subspan(sketch.size());
  replay.sample_count = static_cast<std::uint32_t>(samples.size());
  landed_[step].push_back(std::move(replay));
  ++landed_count_;
}

void CudaSlots::Missed(int device, std::uint64_t rows) {
  recorder_->graphs().MissReplayed(kDropGraphReplay, rows);
  Reach(device, ~std::uint64_t{0});  // it may have been marks that are lost
}

void CudaSlots::Failed(int device) { Reach(device, ~std::uint64_t{0}); }

void CudaSlots::Gone(void* cookie) {
  MutexLock lock(mutex_);
  const auto in_graph = in_graphs_.find(cookie);
  const auto graph = graphs_.find(in_graph->second->graph);
  if (--graph->second.tensors == 0) graphs_.erase(graph);
  in_graphs_.erase(in_graph);
}

const ObservedTensor* CudaSlots::FrontReplayed(const ReplayGate& gate) noexcept {
  DropLate();
  if (landed_.empty() || landed_.begin()->first > gate.step) return nullptr;
  return &landed_.begin()->second.front();
}

void CudaSlots::PopReplayed() noexcept {
  auto& [step, records] = *landed_.begin();
  records.pop_front();
  --landed_count_;
  if (records.empty()) landed_.erase(landed_.begin());
}

void CudaSlots::PassGate(const ReplayGate& gate) noexcept { floor_ = std::max(floor_, gate.next); }

void CudaSlots::Abandon() {
  engine_.Abandon(
      true, [this](void* cookie, const Status&) { recorder_->Commit(static_cast<Slot*>(cookie)); });
  recorder_->graphs().LoseReplayed(kDropClosed, std::exchange(landed_count_, 0));
  landed_.clear();
  MutexLock lock(mutex_);
  open_.clear();
  marks_changed_.notify_all();
}

}  // namespace statcollect
