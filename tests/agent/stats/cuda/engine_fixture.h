// The CUDA engine over a device made of host code, and what was expected of it.
#ifndef STATCOLLECT_TESTS_AGENT_STATS_CUDA_ENGINE_FIXTURE_H_
#define STATCOLLECT_TESTS_AGENT_STATS_CUDA_ENGINE_FIXTURE_H_

#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <vector>

#include "agent/stats/cuda/engine.h"
#include "agent/stats/exponents.h"
#include "tests/agent/stats/cuda/fake_cuda.h"
#include "tests/agent/stats/test_tensor.h"

namespace statcollect::stats::cuda {

inline void* const kStreamA = reinterpret_cast<void*>(0x100);
inline void* const kStreamB = reinterpret_cast<void*>(0x200);
inline void* const kStreamC = reinterpret_cast<void*>(0x300);

class CudaEngineTest : public ::testing::Test {
 protected:
  static constexpr std::int32_t kLowest = -20;
  static constexpr std::uint32_t kBins = 30;  // so that some numbers lie beyond

  struct Answer {
    TensorStats stats;
    std::vector<double> sketch = std::vector<double>(16);
    std::vector<double> samples = std::vector<double>(8);
    std::uint32_t sample_count = 0;
    int ended = 0;
    Status status;
    std::vector<std::uint64_t> exponents = {};  // as many as asked for
  };

  void Make(std::uint32_t records = 8, std::uint32_t lanes = 2, std::uint32_t records_max = 0) {
    engine_ = std::make_unique<CudaEngine>(EngineOptions{.sketch = 16,
                                                         .samples = 8,
                                                         .exponent_lowest = kLowest,
                                                         .exponents = kBins,
                                                         .records = records,
                                                         .records_max = records_max,
                                                         .lanes = lanes},
                                           std::make_unique<FakeCudaApi>(device_));
    ASSERT_TRUE(engine_->Open(0).ok());
  }
  Status Enqueue(const TestTensor& tensor, void* stream, Answer& answer) {
    return engine_->Enqueue(
        tensor.View(), 0, stream,
        {&answer.stats, answer.sketch, answer.samples, &answer.sample_count, answer.exponents},
        &answer);
  }
  // How many were refused; their answers hold why.
  std::size_t EnqueueList(const std::vector<TestTensor>& tensors, void* stream,
                          std::vector<Answer>& answers) {
    std::vector<CudaEngine::Item> items;
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      Answer& answer = answers[i];
      items.push_back(
          {tensors[i].View(),
           {&answer.stats, answer.sketch, answer.samples, &answer.sample_count, answer.exponents},
           &answer});
    }
    std::size_t refused = 0;
    engine_->EnqueueList(items, 0, stream, [&](void* cookie, const Status& status) {
      static_cast<Answer*>(cookie)->status = status;
      ++refused;
    });
    return refused;
  }
  std::size_t Poll() {
    now_ += std::chrono::milliseconds(1);
    return engine_->Poll(now_, End);
  }
  static void End(void* cookie, const Status& status) {
    ++static_cast<Answer*>(cookie)->ended;
    static_cast<Answer*>(cookie)->status = status;
  }

  const std::shared_ptr<FakeDevice> device_ = std::make_shared<FakeDevice>();
  std::unique_ptr<CudaEngine> engine_;
  CudaEngine::TimePoint now_{};
  std::mt19937_64 random_{1};
};

// What the CPU counts.
inline std::vector<std::uint64_t> ExponentsOf(const TestTensor& tensor, std::int32_t lowest,
                                              std::uint32_t bins) {
  std::vector<std::uint64_t> counts(bins);
  CountExponents(tensor.View(), lowest, counts);
  return counts;
}

}  // namespace statcollect::stats::cuda

#endif  // STATCOLLECT_TESTS_AGENT_STATS_CUDA_ENGINE_FIXTURE_H_
