// From a matrix on a CUDA device to token records in a batch, over a device made of host code.
#include "agent/cuda/token_rows.h"

#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "agent/cuda/captures.h"
#include "agent/cuda/slots.h"
#include "agent/export/batcher.h"
#include "agent/stats/rows.h"
#include "tests/agent/stats/cuda/fake_cuda.h"
#include "tests/agent/stats/test_tensor.h"
#include "tests/support/fake_clock.h"

namespace statcollect {
namespace {

using stats::cuda::FakeCudaApi;
using stats::cuda::FakeDevice;

void* const kRowsStream = reinterpret_cast<void*>(0x100);

class RowsSink final : public BatchSink {
 public:
  bool HasRoom() override { return true; }
  std::size_t BatchBytesMax() override { return 16u << 20; }
  void Submit(RecordBatch batch, std::size_t) override { batches.push_back(std::move(batch)); }
  bool Failed() override { return false; }

  std::vector<TokenRecord> Tokens() const {
    std::vector<TokenRecord> all;
    for (const RecordBatch& batch : batches)
      all.insert(all.end(), batch.tokens.begin(), batch.tokens.end());
    return all;
  }
  std::vector<RecordBatch> batches;
};

class CudaTokenRowsTest : public ::testing::Test {
 protected:
  static stats::TestTensor Matrix(std::int64_t rows, std::int64_t columns) {
    std::mt19937_64 random(1);
    return stats::RandomNumbers(DType::kF16, {rows, columns}, random);
  }
  // Tokens of keys 1000, 1001, ... for the rows of the index, or all.
  Status Record(const stats::TestTensor& matrix, const std::vector<std::int64_t>& index = {}) {
    TokenRecord record{.tap = "fc", .dtype = matrix.dtype, .columns = 7, .first_column = 0};
    record.rows.resize(index.empty() ? static_cast<std::size_t>(matrix.shape[0]) : index.size());
    for (std::size_t i = 0; i < record.rows.size(); ++i) record.rows[i].key = 1000 + i;
    return rows_.Record(record, std::nullopt, matrix.View(), index.empty() ? nullptr : index.data(),
                        0, kRowsStream);
  }
  static std::vector<std::uint64_t> HashesOf(const stats::TestTensor& matrix) {
    std::vector<RowStats> rows(static_cast<std::size_t>(matrix.shape[0]));
    stats::ComputeRows(matrix.View(), 0, rows, nullptr);
    std::vector<std::uint64_t> hashes;
    for (const RowStats& row : rows) hashes.push_back(row.hash);
    return hashes;
  }
  void PollFor(std::chrono::milliseconds time) {
    for (const auto end = clock_.Now() + time; clock_.Now() < end;
         clock_.Advance(std::chrono::milliseconds(1))) {
      batcher_.Poll();
    }
  }

  testing::FakeClock clock_;
  Ledger ledger_;
  Waker waker_;
  RowsSink sink_;
  Recorder recorder_{{.slots = 64, .sketch = 16}, &clock_, &ledger_, &waker_};
  const std::shared_ptr<FakeDevice> device_ = std::make_shared<FakeDevice>();
  CudaSlots slots_{{.sketch = 16, .records = 8, .records_max = 8},
                   std::make_unique<FakeCudaApi>(device_),
                   &recorder_,
                   &clock_};
  CudaCaptures captures_{std::make_unique<FakeCudaApi>(device_), {}};
  CudaTokenRows rows_{std::make_unique<FakeCudaApi>(device_), &recorder_, &clock_};
  CudaFiller filler_{&slots_, &captures_, &rows_};
  Batcher batcher_{&recorder_, &sink_, &ledger_, &waker_, &clock_, 16, &filler_};
};

TEST_F(CudaTokenRowsTest, AreSentInTheirStepOnceTheDeviceHasThem) {
  const stats::TestTensor matrix = Matrix(10, 7);
  ASSERT_TRUE(Record(matrix).ok());
  recorder_.EndStep();
  PollFor(std::chrono::seconds(1));
  EXPECT_TRUE(sink_.batches.empty()) << "the end of the step waits behind them";
  EXPECT_EQ(ledger_.Snapshot().pending, 2u) << "so does a flush";
  device_->RunAll();
  PollFor(std::chrono::milliseconds(300));
  ASSERT_EQ(sink_.batches.size(), 1u);
  EXPECT_EQ(sink_.batches[0].steps.size(), 1u);
  ASSERT_EQ(sink_.batches[0].tokens.size(), 1u);
  const TokenRecord& sent = sink_.batches[0].tokens[0];
  const std::vector<std::uint64_t> hashes = HashesOf(matrix);
  ASSERT_EQ(sent.rows.size(), hashes.size());
  for (std::size_t i = 0; i < hashes.size(); ++i) {
    EXPECT_EQ(sent.rows[i].key, 1000 + i);
    EXPECT_EQ(sent.rows[i].stats.hash, hashes[i]);
  }
}

TEST_F(CudaTokenRowsTest, ManyAreSeveralRecordsAndLaunches) {
  const stats::TestTensor matrix = Matrix(static_cast<std::int64_t>(kTokenRowsMax) + 3, 2);
  std::vector<std::int64_t> index;
  for (std::int64_t row = matrix.shape[0]; row-- > 0;) index.push_back(row);
  ASSERT_TRUE(Record(matrix, index).ok());
  device_->RunAll();
  PollFor(std::chrono::milliseconds(300));
  const std::vector<TokenRecord> sent = sink_.Tokens();
  ASSERT_EQ(sent.size(), 2u);
  std::vector<std::uint64_t> hashes;
  for (const TokenRecord& record : sent) {
    for (const TokenRow& row : record.rows) hashes.push_back(row.stats.hash);
  }
  EXPECT_EQ(std::vector(hashes.rbegin(), hashes.rend()), HashesOf(matrix));
}

TEST_F(CudaTokenRowsTest, WhatCudaRefusesIsCountedAsLost) {
  const stats::TestTensor matrix = Matrix(10, 7);
  device_->launch = Status(Code::kInternal, "it does not stick");
  ASSERT_TRUE(Record(matrix).ok()) << "training goes on";
  EXPECT_EQ(ledger_.Snapshot().dropped_by_cause.at("device_error"), 1u);
  device_->launch = Status::Ok();
  ASSERT_TRUE(Record(matrix).ok());
  device_->RunAll();
  PollFor(std::chrono::milliseconds(300));
  EXPECT_EQ(sink_.Tokens().size(), 1u);
}

TEST_F(CudaTokenRowsTest, AStreamThatIsCapturedIsRefusedAndNothingIsProduced) {
  device_->BeginCapture({kRowsStream});
  EXPECT_EQ(Record(Matrix(10, 7)).code(), Code::kFailedPrecondition);
  EXPECT_EQ(ledger_.Snapshot().produced, 0u);
}

TEST_F(CudaTokenRowsTest, ADeviceThatFailsLosesThemAndHoldsUpNothing) {
  ASSERT_TRUE(Record(Matrix(10, 7)).ok());
  recorder_.EndStep();
  device_->health = Status(Code::kInternal, "an illegal address");
  PollFor(std::chrono::seconds(1));
  EXPECT_EQ(ledger_.Snapshot().dropped_by_cause.at("device_error"), 1u);
  ASSERT_FALSE(sink_.batches.empty());
  EXPECT_EQ(sink_.batches[0].steps.size(), 1u);
}

}  // namespace
}  // namespace statcollect
