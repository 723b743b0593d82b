// Rows of matrices on a device, against the same kernel on the host (bit by bit) and the CPU
// engine.
#include <gtest/gtest.h>

#include <bit>
#include <chrono>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "agent/stats/cuda/row_engine.h"
#include "tests/agent/stats/cuda/emulation.h"
#include "tests/agent/stats/cuda/matrix_rows_cases.h"
#include "tests/gpu/on_device.h"

namespace statcollect::stats::cuda {
namespace {

class GpuRowsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    NEEDS_A_GPU();
    engine_ = std::make_unique<RowEngine>(MakeCudaApi());
  }
  // Computes the rows of the index, or all, on the device, and compares with the host.
  void Check(const TestTensor& matrix, std::uint64_t first,
             const std::vector<std::int64_t>& index = {}) {
    const OnDevice device(matrix);
    const RowChoice choice{
        .index = index.empty() ? nullptr : index.data(),
        .count = index.empty() ? static_cast<std::size_t>(matrix.shape[0]) : index.size()};
    const Status checked = engine_->Check(device.View(), 0, nullptr);
    ASSERT_TRUE(checked.ok()) << checked.message();
    ASSERT_TRUE(engine_->Enqueue(device.View(), first, choice, 0, nullptr, 0).ok());
    std::vector<RowRecord> found;
    const auto done = [&](std::uint64_t, std::span<const RowRecord> rows, const Status& status) {
      ASSERT_TRUE(status.ok()) << status.message();
      found.assign(rows.begin(), rows.end());
    };
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (engine_->Poll(std::chrono::steady_clock::now(), done) > 0) {
      ASSERT_LT(std::chrono::steady_clock::now(), deadline);
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
    ASSERT_EQ(found.size(), choice.count);
    ExpectRowsOfTheCpu(found, matrix, first, index);
    const std::vector<RowRecord> emulated = EmulateRows(matrix.View(), first, choice);
    for (std::size_t row = 0; row < found.size() && !HasFailure(); ++row) {
      EXPECT_EQ(std::bit_cast<std::uint32_t>(found[row].l2),
                std::bit_cast<std::uint32_t>(emulated[row].l2));
      for (int i = 0; i < kRowSums; ++i)
        EXPECT_EQ(found[row].sketch[i], emulated[row].sketch[i]) << "row " << row << " sum " << i;
    }
  }

  std::unique_ptr<RowEngine> engine_;
  std::mt19937_64 random_{5};
};

TEST_F(GpuRowsTest, AgreeForEveryDTypeSizeLayoutAndPart) {
  for (const DType dtype : kAllDTypes) {
    for (const auto& [rows, columns] : std::vector<std::pair<std::int64_t, std::int64_t>>{
             {1, 1}, {4096, 1}, {9, 7}, {100, 257}, {64, 4096}, {3, 70'001}}) {
      for (const Layout layout : kLayouts) {
        SCOPED_TRACE(std::string(Name(dtype)) + " " + std::to_string(rows) + " x " +
                     std::to_string(columns) + " layout " +
                     std::to_string(static_cast<int>(layout)));
        const TestTensor matrix =
            RandomMatrix(dtype, rows, columns, layout, RandomNumbers, random_);
        const bool large = rows * columns > 1000;
        Check(matrix, layout == Layout::kPadded ? 4098 : 0,
              large ? std::vector<std::int64_t>{rows - 1, 0} : std::vector<std::int64_t>());
        if (HasFailure()) return;
      }
    }
  }
}

TEST_F(GpuRowsTest, AgreeForAnyBits) {
  for (const DType dtype : kAllDTypes) {
    SCOPED_TRACE(Name(dtype));
    Check(RandomMatrix(dtype, 50, 300, Layout::kPlain, RandomBits, random_), 0);
  }
}

}  // namespace
}  // namespace statcollect::stats::cuda
