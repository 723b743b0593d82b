// The shim itself: what a kernel may rely on holds, and what a device would not survive is an
// error.
#include "tests/agent/stats/cuda/shim/cuda_shim.h"

#include <gtest/gtest.h>

#include <array>
#include <set>
#include <string>
#include <vector>

#include "agent/stats/cuda/device.h"

namespace statcollect::stats::cuda {
namespace {

std::string ErrorOf(const cuda_shim::Grid& grid, const std::function<void()>& kernel) {
  try {
    cuda_shim::Run(grid, kernel);
  } catch (const cuda_shim::KernelError& error) {
    return error.what();
  }
  return "";
}

TEST(CudaShim, EveryThreadOfEveryBlockRunsOnce) {
  std::vector<int> runs(7 * 96);
  cuda_shim::Run({7, 96, 0}, [&] {
    EXPECT_EQ(gridDim.x, 7u);
    EXPECT_EQ(blockDim.x, 96u);
    __syncthreads();
    ++runs[blockIdx.x * blockDim.x + threadIdx.x];
  });
  for (const int each : runs) EXPECT_EQ(each, 1);
}

TEST(CudaShim, LanesExchangeWhatTheyGive) {
  cuda_shim::Run({2, 64, 0}, [] {
    const unsigned lane = threadIdx.x % 32;
    EXPECT_EQ(__shfl_sync(kAllLanes, lane * 1.5, 7), 10.5);
    EXPECT_EQ(__shfl_xor_sync(kAllLanes, lane, 5), lane ^ 5);
    EXPECT_EQ(SumOverLanes(std::uint64_t{1} << lane), 0xffffffffu);
    EXPECT_EQ(MinOverLanes(3.0 - lane), -28.0);
    EXPECT_EQ(__ballot_sync(kAllLanes, lane % 2 == 1), 0xaaaaaaaau);
    EXPECT_EQ(__reduce_add_sync(kAllLanes, lane), 496u);
    EXPECT_EQ(__reduce_max_sync(kAllLanes, -static_cast<int>(lane)), 0);
    EXPECT_EQ(__syncthreads_or(threadIdx.x == 63), 1);
    EXPECT_EQ(__syncthreads_or(0), 0);
  });
}

TEST(CudaShim, OrdersDifferFromLaunchToLaunchAndRepeatWithTheSeed) {
  const auto order = [] {
    std::vector<unsigned> order(4 * 4 * 2);
    unsigned count = 0;
    cuda_shim::Run({4, 32, 0}, [&] {
      if (threadIdx.x % 8 == 0) order[atomicAdd(&count, 1)] = blockIdx.x * 32 + threadIdx.x;
      __syncwarp();
      if (threadIdx.x % 8 == 0) order[atomicAdd(&count, 1)] = blockIdx.x * 32 + threadIdx.x;
    });
    return order;
  };
  std::set<std::vector<unsigned>> orders;
  cuda_shim::Seed(5);
  const auto first = order();
  for (int i = 0; i < 10; ++i) orders.insert(order());
  EXPECT_GT(orders.size(), 5u);
  cuda_shim::Seed(5);
  EXPECT_EQ(order(), first);
}

TEST(CudaShim, ABarrierThatIsLeftOutShows) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a race on purpose, which ThreadSanitizer reports";
#endif
  int seen = 0;
  for (int round = 0; round < 20; ++round) {
    cuda_shim::Run({1, 32, 4}, [&] {
      auto* const word = reinterpret_cast<volatile int*>(BlockMemory());
      if (threadIdx.x == 3) *word = 1;
      if (threadIdx.x == 20 && *word == 1) ++seen;
      __syncwarp();
      EXPECT_EQ(*word, 1);
    });
  }
  EXPECT_GT(seen, 0);
  EXPECT_LT(seen, 20);
}

TEST(CudaShim, ACopyIsThereOnlyOnceSomebodyHasWaited) {
  alignas(16) static const std::array<int, 4> from = {1, 2, 3, 4};
  int early = 0;
  for (int round = 0; round < 20; ++round) {
    cuda_shim::Run({1, 1, 16}, [&] {
      CopyAsync(BlockMemory(), from.data(), 8);
      CommitCopies();
      auto* const words = reinterpret_cast<const int*>(BlockMemory());
      early += words[0] == 1;
      AwaitCopies();
      EXPECT_EQ(words[1], 2);
      EXPECT_EQ(words[2], 0) << "behind what was asked for";
    });
  }
  EXPECT_GT(early, 0);
  EXPECT_LT(early, 20);
}

TEST(CudaShim, WhatADeviceWouldNotSurviveIsAnError) {
  EXPECT_EQ(ErrorOf({1, 32, 0},
                    [] {
                      if (threadIdx.x < 16) __syncwarp();
                      if (threadIdx.x >= 16) (void)__shfl_sync(kAllLanes, 1, 0);
                    })
                .substr(0, 43),
            "lanes of a warp meet at different functions");
  EXPECT_NE(ErrorOf({1, 32, 0},
                    [] {
                      if (threadIdx.x != 4) __syncwarp();
                    })
                .find("has ended"),
            std::string::npos);
  EXPECT_NE(ErrorOf({1, 64, 0},
                    [] {
                      if (threadIdx.x != 4) {
                        __syncthreads();
                      } else {
                        __syncwarp();
                      }
                    }),
            "");
  EXPECT_NE(ErrorOf({1, 64, 0},
                    [] {
                      if (threadIdx.x < 32) __syncthreads();
                    }),
            "");
  EXPECT_NE(ErrorOf({2, 64, 0},
                    [] {
                      if (threadIdx.x >= 32) __syncwarp(1u << (threadIdx.x % 32));
                      if (threadIdx.x < 32) __syncwarp(2u);
                    })
                .find("not in the mask"),
            std::string::npos);
  EXPECT_NE(ErrorOf({1, 1, 32},
                    [] {
                      alignas(16) static const std::array<int, 4> from = {};
                      CopyAsync(BlockMemory(), from.data(), 16);
                      CommitCopies();
                    })
                .find("nobody waited"),
            std::string::npos);
  // And the next launch runs as if nothing had been.
  EXPECT_EQ(ErrorOf({3, 32, 0}, [] { __syncwarp(); }), "");
}

}  // namespace
}  // namespace statcollect::stats::cuda
