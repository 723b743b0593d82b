// The inside of statagent::Agent: wires recorder, engine, batcher, exporter and gRPC.
#ifndef STATCOLLECT_AGENT_AGENT_IMPL_H_
#define STATCOLLECT_AGENT_AGENT_IMPL_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "agent/cuda/captures.h"
#include "agent/cuda/slots.h"
#include "agent/cuda/token_rows.h"
#include "agent/export/batcher.h"
#include "agent/export/exporter.h"
#include "agent/export/log_limiter.h"
#include "agent/export/ring_watch.h"
#include "agent/export/transport.h"
#include "agent/full_steps_queue.h"
#include "agent/option_resolver.h"
#include "agent/process_guard.h"
#include "agent/staging/recorder.h"
#include "agent/staging/tensor_ring.h"
#include "agent/stats/cpu/workers.h"
#include "agent/stats/stats.h"
#include "common/clock.h"
#include "common/thread_annotations.h"
#include "statagent/agent.h"

namespace statagent {

// The view as the statistics engines take it, on any device; an error says what is wrong with the
// view.
Result<statcollect::stats::CpuTensor> CheckedTensor(const TensorView& tensor);

// A matrix, of which `index` chooses rows for `count` tokens (empty: it has as many), as the
// engines take it; an error says what is wrong.
Result<statcollect::stats::CpuTensor> CheckedRows(const TensorView& rows,
                                                  std::uint64_t first_column, std::size_t count,
                                                  std::span<const std::int64_t> index = {});

// Threads: as Agent. In a forked child only IsCopy may be called: the parent's threads do not exist
// there, and one of them may have held a mutex.
class __attribute__((visibility("hidden"))) Agent::Impl final : public statcollect::ClosedAtExit {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  Impl(statcollect::ResolvedOptions options, statcollect::Launch launch,
       std::unique_ptr<statcollect::Transport> transport);
  // For STATAGENT_DISABLE, and for ranks that do not record: Inert() is true.
  explicit Impl(statcollect::Launch launch = {}) : launch_(std::move(launch)) {}
  ~Impl() override;

  Status Start();
  bool IsCopy() const noexcept { return generation_ != statcollect::ForkGeneration(); }
  bool Inert() const noexcept { return parts_ == nullptr || IsCopy(); }

  Status Observe(const Identity& identity, const TensorView& tensor, void* stream);
  Status Observe(std::uint32_t handle, const TensorView& tensor, void* stream);
  Status ObserveList(std::span<const Item> items, void* stream, std::size_t* refused);
  Status RecordRows(const TokenRows& rows, std::optional<std::uint64_t> step);
  Result<std::uint32_t> Intern(const Identity& identity);
  void ReplaysIn(int device, void* stream) { parts_->cuda.ReplaysIn(device, stream); }
  std::optional<FullSteps> NextFullSteps() { return parts_->full_steps.Next(); }
  std::vector<int> ReplayDevices() { return parts_->cuda.ReplayDevices(); }
  void EndStep();
  Status SetStep(std::uint64_t step);
  Status Flush(std::chrono::milliseconds timeout);
  // `goodbye`: as Exporter::Finish.
  Status Close(std::chrono::milliseconds timeout, bool goodbye = true);
  Status CloseUnused(std::chrono::milliseconds timeout);
  void CloseAtExit() noexcept override;

  statcollect::Recorder& recorder() { return parts_->recorder; }
  statcollect::AgentCounters counters() const { return parts_->ledger.Snapshot(); }
  std::uint64_t spilled() const { return parts_->exporter.progress().spilled; }
  const statcollect::Launch& launch() const { return launch_; }
  RecordingRank recording_rank() const {
    return {.number = launch_.recording.CountBelow(launch_.rank),
            .count = launch_.recording.count()};
  }

 private:
  // In the order of construction; destroyed backwards, threads first.
  struct Parts {
    Parts(const statcollect::ResolvedOptions& options, const statcollect::Launch& launch,
          std::unique_ptr<statcollect::Transport> own_transport);
    // Follows a request of the collector. Unknown kinds are ignored.
    void Apply(const statcollect::Directive& directive);
    void ApplySteps(const statcollect::Directive& directive);
    void ApplyCapture(const statcollect::Directive& directive);
    void ApplyFull(const statcollect::Directive& directive);
    // Keeps the tensor's raw values.
    void KeepValues(statcollect::CaptureTarget target, const statcollect::stats::CpuTensor& data,
                    const TensorView& tensor, void* stream);

    // Copies the tensor's values, at once or, from a device, later.
    Status CopyValues(statcollect::CapturedTensor* captured,
                      const statcollect::stats::CpuTensor& data, const TensorView& tensor,
                      void* stream);
    void KeepInRing(const statcollect::CaptureTarget& target,
                    const statcollect::stats::CpuTensor& data, const TensorView& tensor,
                    void* stream);

    statcollect::SystemClock clock;
    const statcollect::SessionInfo session;
    statcollect::Ledger ledger;
    statcollect::Waker waker;
    statcollect::LogLimiter log;
    Status ring_status;  // why there is no ring, though it was asked for
    const std::unique_ptr<statcollect::TensorRing> ring;
    statcollect::Recorder recorder;
    statcollect::FullStepsQueue full_steps;
    statcollect::stats::CpuWorkers workers;
    const std::unique_ptr<statcollect::Transport> transport;
    statcollect::Exporter exporter;
    statcollect::CudaSlots cuda;
    statcollect::CudaCaptures cuda_captures;
    statcollect::CudaTokenRows cuda_rows;
    statcollect::CudaFiller filler;
    statcollect::RingWatch ring_watch;
    statcollect::Batcher batcher;
  };

  // That earlier launches have left files to be sent, in one line for each machine.
  void SayWhatIsLeft();
  Result<statcollect::stats::CpuTensor> Open(const TensorView& tensor);
  bool IsCapturing(const TensorView& tensor, void* stream) {
    return tensor.device == Device::kCuda && parts_->cuda.IsCapturing(tensor.device_index, stream);
  }
  // `id`: of the tensor, as Recorder::Begin and GraphTensors::AddToGraph take it.
  template <typename... Id>
  Status ObserveAs(const TensorView& tensor, void* stream, const Id&... id);
  Status AddToGraph(const statcollect::GraphTensor& graph_tensor,
                    const statcollect::stats::CpuTensor& data, const TensorView& tensor,
                    void* stream, const statcollect::PlacementView* place);
  // Marks what has been replayed so far, if there are graphs; returns the mark's number, or 0
  // without graphs.
  std::uint64_t MarkReplays();
  // As above, behind this gate and only on these devices.
  std::uint64_t Mark(statcollect::Slot* gate, const std::vector<int>& devices);
  // Ends the threads of parts_ and sets close_status_. False if one of them hangs: they are left
  // behind.
  bool EndThreads(TimePoint deadline, std::chrono::milliseconds timeout, bool goodbye)
      STATCOLLECT_REQUIRES(close_mutex_);
  // `place`: of a part of a logical tensor; null: the whole, or not known.
  Status Fill(statcollect::Slot* slot, const statcollect::stats::CpuTensor& data,
              const TensorView& tensor, void* stream, const statcollect::PlacementView* place);

  const std::uint64_t generation_ = statcollect::ForkGeneration();
  statcollect::ResolvedOptions options_;
  statcollect::Launch launch_;
  std::unique_ptr<Parts> parts_;
  statcollect::Mutex close_mutex_;
  bool closed_ STATCOLLECT_GUARDED_BY(close_mutex_) = false;
  bool left_behind_ = false;  // written by the first Close
  Status close_status_ STATCOLLECT_GUARDED_BY(close_mutex_);
};

}  // namespace statagent

#endif  // STATCOLLECT_AGENT_AGENT_IMPL_H_
