#include "agent/stats/cuda/compute.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <string>
#include <thread>

#include "agent/stats/cuda/row_engine.h"
#include "agent/stats/exponent_of.h"
#include "common/thread_annotations.h"

namespace statcollect::stats::cuda {
namespace {

// Where the engine writes: memory of its own, as a result may come after the caller's deadline.
struct Waited {
  TensorStats stats;
  std::array<double, kSketchSums> sketch;
  std::array<double, kSamplesMax> samples;
  std::array<std::uint64_t, kExponentCount> exponents;
  std::uint32_t sample_count = 0;
  bool done = false;
  Status status;
};

void Finish(void* cookie, const Status& status) {
  if (cookie == nullptr) return;
  static_cast<Waited*>(cookie)->done = true;
  static_cast<Waited*>(cookie)->status = status;
}

// Calls poll(now), which says whether it is done, until it is. False: it took too long.
template <typename PollEngine>
bool PollUntilDone(std::chrono::milliseconds timeout, const PollEngine& poll) {
  const CudaEngine::TimePoint deadline = std::chrono::steady_clock::now() + timeout;
  for (int round = 0;; ++round) {
    const CudaEngine::TimePoint now = std::chrono::steady_clock::now();
    if (poll(now)) return true;
    if (now >= deadline) return false;
    if (round > 100) std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
}

Status TookTooLong(std::chrono::milliseconds timeout) {
  return {Code::kDeadlineExceeded,
          "statistics of a CUDA tensor: not ready after " + std::to_string(timeout.count()) +
              " ms; expected the stream to reach it; check what the device is doing"};
}

}  // namespace

Status ComputeCuda(const CpuTensor& tensor, int device, void* stream, const Output& output,
                   std::chrono::milliseconds timeout, const Placement* placement) {
  // Lives as long as the process: at its end CUDA may be gone before it.
  static CudaEngine* const engine = new CudaEngine({.sketch = kSketchSums,
                                                    .samples = kSamplesMax,
                                                    .exponent_lowest = kExponentMin,
                                                    .exponents = kExponentCount,
                                                    .records = 16,
                                                    .records_max = 16,
                                                    .lanes = 1},
                                                   MakeCudaApi());
  static Mutex one_at_a_time;
  MutexLock lock(one_at_a_time);
  STATCOLLECT_RETURN_IF_ERROR(engine->Check(tensor, device));
  if (engine->IsCapturing(device, stream)) {
    return {Code::kFailedPrecondition,
            "statistics of a CUDA tensor: its stream is being captured into a graph, where nothing "
            "is computed "
            "yet; expected a stream that runs; compute after a replay"};
  }
  static Waited* const result = new Waited;
  *result = Waited();
  const Output own = {&result->stats, std::span(result->sketch).first(output.sketch.size()),
                      std::span(result->samples).first(output.samples.size()),
                      &result->sample_count,
                      std::span(result->exponents).first(output.exponents.size())};
  STATCOLLECT_RETURN_IF_ERROR(engine->Enqueue(tensor, device, stream, own, result, placement));
  const bool came = PollUntilDone(timeout, [](CudaEngine::TimePoint now) {
    (void)engine->Poll(now, Finish);
    return result->done;
  });
  if (!came) {
    engine->Abandon(false, Finish);
    return TookTooLong(timeout);
  }
  STATCOLLECT_RETURN_IF_ERROR(result->status);
  *output.stats = result->stats;
  std::copy_n(result->sketch.begin(), output.sketch.size(), output.sketch.begin());
  std::copy_n(result->samples.begin(), result->sample_count, output.samples.begin());
  std::copy_n(result->exponents.begin(), output.exponents.size(), output.exponents.begin());
  if (output.sample_count != nullptr) *output.sample_count = result->sample_count;
  return Status::Ok();
}

Status ComputeRowsCuda(const CpuTensor& rows, std::uint64_t first, int device, void* stream,
                       std::span<RowStats> out, std::chrono::milliseconds timeout) {
  static RowEngine* const engine = new RowEngine(MakeCudaApi());
  static Mutex one_at_a_time;
  static std::uint64_t launches = 0;
  MutexLock lock(one_at_a_time);
  STATCOLLECT_RETURN_IF_ERROR(engine->Check(rows, device, stream));
  for (std::size_t begin = 0; begin < out.size(); begin += RowEngine::kRowsMax) {
    const std::size_t count = std::min(RowEngine::kRowsMax, out.size() - begin);
    const std::uint64_t number = ++launches;
    STATCOLLECT_RETURN_IF_ERROR(
        engine->Enqueue(rows, first, {.begin = begin, .count = count}, device, stream, number));
    bool done = false;
    Status failed;
    const auto take = [&](std::uint64_t cookie, std::span<const RowRecord> found,
                          const Status& status) {
      if (cookie != number) return;  // of a call that waits no more
      done = true;
      failed = status;
      for (std::size_t i = 0; i < found.size(); ++i) out[begin + i] = ToRowStats(found[i]);
    };
    const bool came = PollUntilDone(timeout, [&](CudaEngine::TimePoint now) {
      (void)engine->Poll(now, take);
      return done;
    });
    if (!came) return TookTooLong(timeout);
    STATCOLLECT_RETURN_IF_ERROR(failed);
  }
  return Status::Ok();
}

}  // namespace statcollect::stats::cuda
