// What tests on a GPU share.
#ifndef STATCOLLECT_TESTS_GPU_ON_DEVICE_H_
#define STATCOLLECT_TESTS_GPU_ON_DEVICE_H_

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>

#include "agent/stats/stats.h"
#include "tests/agent/stats/test_tensor.h"

namespace statcollect::stats::cuda {

inline bool HasDevice() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess && count > 0;
}

#define NEEDS_A_GPU() \
  if (!HasDevice()) GTEST_SKIP() << "no CUDA device or driver here"

// A copy of a tensor's whole storage on the device, as far from a vector's boundary as the
// original.
class OnDevice {
 public:
  explicit OnDevice(const TestTensor& tensor) : view_(tensor.View()) {
    const std::size_t bytes = tensor.storage.size() * sizeof(std::uint64_t);
    EXPECT_EQ(cudaMalloc(&memory_, bytes + 1), cudaSuccess);
    EXPECT_EQ(cudaMemcpy(memory_, tensor.storage.data(), bytes, cudaMemcpyHostToDevice),
              cudaSuccess);
    view_.data = static_cast<unsigned char*>(memory_) +
                 (static_cast<const unsigned char*>(view_.data) -
                  reinterpret_cast<const unsigned char*>(tensor.storage.data()));
  }
  ~OnDevice() { cudaFree(memory_); }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;
  const CpuTensor& View() const { return view_; }

 private:
  void* memory_ = nullptr;
  CpuTensor view_;
};

}  // namespace statcollect::stats::cuda

#endif  // STATCOLLECT_TESTS_GPU_ON_DEVICE_H_
