// Rows of matrices, computed by the shipped kernel on a device made of host code.
#include "agent/stats/cuda/row_engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "tests/agent/stats/cuda/fake_cuda.h"
#include "tests/agent/stats/cuda/matrix_rows_cases.h"
#include "tests/agent/stats/cuda/shim/cuda_shim.h"

namespace statcollect::stats::cuda {
namespace {

using ::testing::HasSubstr;
using Index = std::vector<std::int64_t>;

void* const kRowStream = reinterpret_cast<void*>(0x100);

class RowEngineTest : public ::testing::Test {
 protected:
  struct Came {
    std::uint64_t cookie;
    std::vector<RowRecord> rows;
    Status status;
  };

  Status Enqueue(const TestTensor& matrix, std::uint64_t first, const RowChoice& choice,
                 std::uint64_t cookie = 0) {
    STATCOLLECT_RETURN_IF_ERROR(engine_->Check(matrix.View(), 0, kRowStream));
    return engine_->Enqueue(matrix.View(), first, choice, 0, kRowStream, cookie);
  }
  std::size_t Poll() {
    now_ += std::chrono::seconds(1);
    return engine_->Poll(
        now_, [this](std::uint64_t cookie, std::span<const RowRecord> rows, const Status& status) {
          came_.push_back({cookie, {rows.begin(), rows.end()}, status});
        });
  }
  // Computes the rows of the index, or all.
  std::vector<RowRecord> Compute(const TestTensor& matrix, std::uint64_t first = 0,
                                 const Index& index = {}) {
    came_.clear();
    const std::size_t count =
        index.empty() ? static_cast<std::size_t>(matrix.shape[0]) : index.size();
    const std::int64_t* const chosen = index.empty() ? nullptr : index.data();
    EXPECT_TRUE(Enqueue(matrix, first, {.index = chosen, .count = count}).ok());
    device_->RunAll();
    EXPECT_EQ(Poll(), 0u);
    return came_.size() == 1 ? came_[0].rows : std::vector<RowRecord>();
  }
  TestTensor Numbers(DType dtype, std::int64_t rows, std::int64_t columns,
                     Layout layout = Layout::kPlain) {
    return RandomMatrix(dtype, rows, columns, layout, RandomNumbers, random_);
  }

  const std::shared_ptr<FakeDevice> device_ = std::make_shared<FakeDevice>();
  std::unique_ptr<RowEngine> engine_ =
      std::make_unique<RowEngine>(std::make_unique<FakeCudaApi>(device_));
  RowEngine::TimePoint now_{};
  std::vector<Came> came_;
  std::mt19937_64 random_{1};
};

TEST_F(RowEngineTest, RowsAreThoseOfTheCpuForEveryDTypeAndSize) {
  for (const DType dtype : kAllDTypes) {
    for (const auto& [rows, columns] : std::vector<std::pair<std::int64_t, std::int64_t>>{
             {1, 1}, {3, 1}, {9, 7}, {2, 64}, {10, 257}, {2, 1024}, {1, 2500}}) {
      SCOPED_TRACE(std::string(Name(dtype)) + " " + std::to_string(rows) + " x " +
                   std::to_string(columns));
      const TestTensor matrix = Numbers(dtype, rows, columns);
      ExpectRowsOfTheCpu(Compute(matrix), matrix, 0, {}, AddsExactly(dtype));
      if (HasFailure()) return;
    }
  }
}

TEST_F(RowEngineTest, RowsAreThoseOfTheCpuForEveryLayoutAndChoice) {
  for (const DType dtype : {DType::kF64, DType::kF32, DType::kBf16, DType::kU8, DType::kC64}) {
    for (const Layout layout : kLayouts) {
      for (const std::int64_t columns : {5, 1100}) {
        SCOPED_TRACE(std::string(Name(dtype)) + " layout " +
                     std::to_string(static_cast<int>(layout)) + " x " + std::to_string(columns));
        const TestTensor matrix = Numbers(dtype, 6, columns, layout);
        ExpectRowsOfTheCpu(Compute(matrix), matrix, 0);
        const Index index = {5, 0, 3, 3};
        ExpectRowsOfTheCpu(Compute(matrix, 0, index), matrix, 0, index);
        if (HasFailure()) return;
      }
    }
  }
}

TEST_F(RowEngineTest, PartsOfLongerRowsAreThoseOfTheCpu) {
  for (const DType dtype : {DType::kF64, DType::kF32, DType::kF16, DType::kI8, DType::kC128}) {
    for (const std::uint64_t first : {2u, 8u, 100u, 1024u, 2050u, 4'000'000u, 0xffff'0000u}) {
      for (const std::int64_t columns : {1, 3, 900}) {
        SCOPED_TRACE(std::string(Name(dtype)) + " from " + std::to_string(first) + " x " +
                     std::to_string(columns));
        const TestTensor matrix = Numbers(dtype, 2, columns);
        ExpectRowsOfTheCpu(Compute(matrix, first), matrix, first);
        if (HasFailure()) return;
      }
    }
  }
  const TestTensor odd = Numbers(DType::kBf16, 2, 300);
  ExpectRowsOfTheCpu(Compute(odd, 1001), odd, 1001);
}

// They are shared by the warps of a block.
TEST_F(RowEngineTest, LongRowsAreThoseOfTheCpu) {
  const auto limit = static_cast<std::int64_t>(kWarpRowBlocks * kRowBlockBytes / 4);
  for (const std::int64_t columns : {limit, limit + 1, 3 * limit + 77}) {
    SCOPED_TRACE(columns);
    const TestTensor matrix = Numbers(DType::kF32, 2, columns);
    ExpectRowsOfTheCpu(Compute(matrix), matrix, 0);
    ExpectRowsOfTheCpu(Compute(matrix, 12), matrix, 12);
  }
  const TestTensor strided = Numbers(DType::kF64, 1, limit, Layout::kEverySecond);
  ExpectRowsOfTheCpu(Compute(strided), strided, 0);
}

// Of a matrix that nobody fills: most of its pages are never there.
TEST_F(RowEngineTest, RowsMayLieMoreThan32BitsApart) {
  const std::int64_t stride = (std::int64_t{1} << 31) + 8;
  const auto bytes = static_cast<std::size_t>(4 * (stride + 100));
  void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  const TestTensor numbers = Numbers(DType::kF32, 1, 100);
  std::memcpy(static_cast<unsigned char*>(memory) + 4 * stride, numbers.View().data, 400);
  const std::array<std::int64_t, 2> shape{2, 100}, strides{stride, 1};
  const CpuTensor matrix{memory, DType::kF32, shape, strides};
  EXPECT_TRUE(engine_->Check(matrix, 0, kRowStream).ok());
  EXPECT_TRUE(engine_->Enqueue(matrix, 0, {.begin = 1, .count = 1}, 0, kRowStream, 0).ok());
  const Index index = {1};
  EXPECT_TRUE(
      engine_->Enqueue(matrix, 0, {.index = index.data(), .count = 1}, 0, kRowStream, 1).ok());
  device_->RunAll();
  EXPECT_EQ(Poll(), 0u);
  ASSERT_EQ(came_.size(), 2u);
  for (const Came& came : came_) ExpectRowsOfTheCpu(came.rows, numbers, 0);
  munmap(memory, bytes);
}

TEST_F(RowEngineTest, PartsAddUpToTheWhole) {
  const TestTensor matrix = Numbers(DType::kBf16, 3, 4000);
  const std::vector<RowRecord> whole = Compute(matrix);
  std::vector<std::uint64_t> hashes(3);
  std::vector<double> squares(3);
  for (const auto& [begin, end] : {std::pair(0, 1333), std::pair(1333, 4000)}) {
    TestTensor part = matrix;
    part.shape[1] = end - begin;
    part.strides = {4000, 1};
    part.origin = begin;
    const std::vector<RowRecord> rows = Compute(part, static_cast<std::uint64_t>(begin));
    for (std::size_t row = 0; row < 3; ++row) {
      hashes[row] += rows[row].hash;
      squares[row] += std::pow(static_cast<double>(rows[row].l2), 2);
    }
  }
  for (std::size_t row = 0; row < 3; ++row) {
    EXPECT_EQ(hashes[row], whole[row].hash);
    EXPECT_NEAR(std::sqrt(squares[row]), whole[row].l2, 1e-6 * static_cast<double>(whole[row].l2));
  }
}

// NaN, infinities, subnormals and numbers whose squares leave float64.
TEST_F(RowEngineTest, AnyBitsAreAsOnTheCpu) {
  for (const DType dtype : kAllDTypes) {
    for (const std::int64_t columns : {1, 2, 300}) {
      SCOPED_TRACE(std::string(Name(dtype)) + " x " + std::to_string(columns));
      const TestTensor matrix =
          RandomMatrix(dtype, 20, columns, Layout::kPlain, RandomBits, random_);
      ExpectRowsOfTheCpu(Compute(matrix), matrix, 0);
      if (HasFailure()) return;
    }
  }
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float infinity = std::numeric_limits<float>::infinity();
  const std::vector<float> edges = {0, -0.0f, nan, infinity, -infinity, 1e-45f, 3.4e38f};
  TestTensor alone = TensorOf(edges);
  alone.shape = {static_cast<std::int64_t>(edges.size()), 1};
  ExpectRowsOfTheCpu(Compute(alone), alone, 0);
  TestTensor together = TensorOf(edges);
  together.shape = {1, static_cast<std::int64_t>(edges.size())};
  ExpectRowsOfTheCpu(Compute(together), together, 0);
}

TEST_F(RowEngineTest, RowsWithoutColumnsAreEmpty) {
  const TestTensor matrix = Numbers(DType::kF32, 10, 0);
  for (const RowRecord& row : Compute(matrix)) {
    EXPECT_EQ(row.hash, 0u);
    EXPECT_EQ(row.l2, 0);
  }
  ExpectRowsOfTheCpu(Compute(matrix, 77), matrix, 77);
}

TEST_F(RowEngineTest, AChoiceMayBeginAnywhere) {
  const TestTensor matrix = Numbers(DType::kF16, 40, 33);
  const std::vector<RowRecord> all = Compute(matrix);
  Index index;
  for (std::int64_t row = 0; row < 40; ++row) index.push_back(39 - row);
  for (const bool chosen : {false, true}) {
    came_.clear();
    const std::int64_t* const of = chosen ? index.data() : nullptr;
    ASSERT_TRUE(Enqueue(matrix, 0, {.index = of, .begin = 30, .count = 5}).ok());
    device_->RunAll();
    EXPECT_EQ(Poll(), 0u);
    ASSERT_EQ(came_.size(), 1u);
    for (std::size_t i = 0; i < 5; ++i)
      EXPECT_EQ(came_[0].rows[i].hash, all[chosen ? 9 - i : 30 + i].hash) << i;
  }
}

// The host polls between any two steps of the kernel.
TEST_F(RowEngineTest, WhatIsReadWhileTheKernelRunsIsComplete) {
  const TestTensor matrix = Numbers(DType::kF32, 12, 700);
  for (int round = 0; round < 20; ++round) {
    came_.clear();
    ASSERT_TRUE(Enqueue(matrix, 0, {.count = 12}).ok());
    cuda_shim::Meanwhile([&] {
      const bool before = !came_.empty();
      (void)Poll();
      if (!before && !came_.empty()) ExpectRowsOfTheCpu(came_[0].rows, matrix, 0);
    });
    device_->RunAll();
    cuda_shim::Meanwhile({});
    EXPECT_EQ(Poll(), 0u);
    ASSERT_EQ(came_.size(), 1u);
    ExpectRowsOfTheCpu(came_[0].rows, matrix, 0);
  }
}

TEST_F(RowEngineTest, MemoryIsUsedAgainOnceItsRowsHaveCome) {
  const TestTensor matrix = Numbers(DType::kF32, 1, 3);
  for (int round = 0; round < 300; ++round) ExpectRowsOfTheCpu(Compute(matrix), matrix, 0);
  EXPECT_EQ(device_->allocations.size(), 2u) << "the tables, and one piece of pinned memory";
}

TEST_F(RowEngineTest, RowsInFlightAreBounded) {
  const TestTensor matrix = Numbers(DType::kF32, 4096, 1);
  std::size_t enqueued = 0;
  Status status;
  while ((status = Enqueue(matrix, 0, {.count = 4096}, enqueued)).ok()) ++enqueued;
  EXPECT_EQ(status.code(), Code::kResourceExhausted);
  EXPECT_EQ(enqueued, RowEngine::kRowsInFlightMax / 4096);
  EXPECT_EQ(Poll(), enqueued);
  ASSERT_TRUE(came_.empty());
}

TEST_F(RowEngineTest, ALaunchThatFailsLosesItsRowsAndNothingElse) {
  const TestTensor matrix = Numbers(DType::kF32, 4, 10);
  ASSERT_TRUE(Enqueue(matrix, 0, {.count = 4}, 1).ok());
  device_->launch = Status(Code::kInternal, "it does not stick");
  for (int i = 0; i < 1000; ++i)
    EXPECT_EQ(Enqueue(matrix, 0, {.count = 4}, 2).code(), Code::kInternal);
  device_->launch = Status::Ok();
  ASSERT_TRUE(Enqueue(matrix, 0, {.count = 4}, 3).ok());
  EXPECT_EQ(Poll(), 2u);
  device_->RunAll();
  EXPECT_EQ(Poll(), 0u);
  ASSERT_EQ(came_.size(), 2u);
  EXPECT_EQ(came_[0].cookie, 1u);
  EXPECT_EQ(came_[1].cookie, 3u);
  EXPECT_EQ(device_->allocations.size(), 2u);
}

TEST_F(RowEngineTest, ADeviceThatFailsLosesWhatIsInFlight) {
  const TestTensor matrix = Numbers(DType::kF32, 4, 10);
  ASSERT_TRUE(Enqueue(matrix, 0, {.count = 4}, 7).ok());
  EXPECT_EQ(Poll(), 1u);
  device_->health = Status(Code::kInternal, "an illegal address");
  EXPECT_EQ(Poll(), 0u);
  ASSERT_EQ(came_.size(), 1u);
  EXPECT_EQ(came_[0].cookie, 7u);
  EXPECT_EQ(came_[0].status.code(), Code::kInternal);
  EXPECT_TRUE(came_[0].rows.empty());
  engine_.reset();
  EXPECT_EQ(device_->allocations.size(), 2u) << "the device may still write them";
}

TEST_F(RowEngineTest, AStreamThatIsCapturedIsRefused) {
  const TestTensor matrix = Numbers(DType::kF32, 4, 10);
  device_->BeginCapture({kRowStream});
  const Status status = Enqueue(matrix, 0, {.count = 4});
  EXPECT_EQ(status.code(), Code::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("CUDA graph"));
}

TEST_F(RowEngineTest, WhatIsAbandonedDoesNotCome) {
  const TestTensor matrix = Numbers(DType::kF32, 4, 10);
  ASSERT_TRUE(Enqueue(matrix, 0, {.count = 4}).ok());
  engine_->Abandon();
  EXPECT_EQ(Enqueue(matrix, 0, {.count = 4}).code(), Code::kAborted);
  device_->RunAll();
  EXPECT_EQ(Poll(), 0u);
  EXPECT_TRUE(came_.empty());
}

TEST_F(RowEngineTest, WithoutCudaEveryMatrixIsRefused) {
  RowEngine none(nullptr);
  const Status status = none.Check(Numbers(DType::kF32, 1, 1).View(), 0, kRowStream);
  EXPECT_EQ(status.code(), Code::kUnimplemented);
  EXPECT_THAT(std::string(status.message()), HasSubstr("copy the matrix to the CPU"));
}

}  // namespace
}  // namespace statcollect::stats::cuda
