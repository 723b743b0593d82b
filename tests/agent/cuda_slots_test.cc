// From a CUDA tensor to a batch, over a device made of host code: slots that are filled later.
#include "agent/cuda_slots.h"

#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "agent/export/batcher.h"
#include "tests/agent/stats/fake_cuda.h"
#include "tests/agent/stats/test_tensor.h"
#include "tests/support/fake_clock.h"

namespace statcollect {
namespace {

using stats::cuda::FakeCudaApi;
using stats::cuda::FakeDevice;

void* const kStream = reinterpret_cast<void*>(0x100);

class ListSink final : public BatchSink {
 public:
  bool HasRoom() override { return true; }
  std::size_t BatchBytesMax() override { return 1u << 20; }
  void Submit(RecordBatch batch, std::size_t) override { batches.push_back(std::move(batch)); }
  bool Failed() override { return false; }

  std::vector<RecordBatch> batches;
};

class CudaSlotsTest : public ::testing::Test {
 protected:
  CudaSlotsTest() { EXPECT_TRUE(cuda_.Check(tensor_.View(), 0).ok()); }

  void Observe(const std::string& name, const stats::CpuTensor& tensor) {
    Slot* slot = nullptr;
    ASSERT_TRUE(
        recorder_.Begin({.name = name, .kind = Kind::kOutput}, false, tensor.dtype, tensor.shape, &slot)
            .ok());
    ASSERT_NE(slot, nullptr);
    ASSERT_TRUE(cuda_.Fill(slot, tensor, 0, kStream).ok());
  }
  void ObserveOnCpu(const std::string& name) {
    Slot* slot = nullptr;
    ASSERT_TRUE(
        recorder_.Begin({.name = name, .kind = Kind::kOutput}, false, DType::kF32, tensor_.shape, &slot)
            .ok());
    recorder_.Commit(slot);
  }
  // As the batcher's thread would, for a while.
  void PollFor(std::chrono::milliseconds time) {
    for (const auto end = clock_.Now() + time; clock_.Now() < end;
         clock_.Advance(std::chrono::milliseconds(1))) {
      batcher_.Poll();
    }
  }
  std::size_t RecordsSent() const {
    std::size_t records = 0;
    for (const RecordBatch& batch : sink_.batches) records += batch.records();
    return records;
  }

  testing::FakeClock clock_;
  Ledger ledger_;
  Waker waker_;
  ListSink sink_;
  Recorder recorder_{{.slots = 64, .sketch = 16, .samples = 4}, &clock_, &ledger_, &waker_};
  const std::shared_ptr<FakeDevice> device_ = std::make_shared<FakeDevice>();
  CudaSlots cuda_{{.sketch = 16, .samples = 4, .records = 8},
                  std::make_unique<FakeCudaApi>(device_),
                  &recorder_,
                  &clock_};
  Batcher batcher_{&recorder_, &sink_, &ledger_, &waker_, &clock_, 16, &cuda_};
  std::mt19937_64 random_{1};
  const stats::TestTensor tensor_ = stats::RandomNumbers(DType::kF32, {3000}, random_);
};

TEST_F(CudaSlotsTest, SendsStatisticsOnceTheDeviceHasThem) {
  Observe("a", tensor_.View());
  ObserveOnCpu("b");
  recorder_.EndStep();
  PollFor(std::chrono::seconds(1));
  EXPECT_EQ(RecordsSent(), 0u) << "what was observed first leaves first";
  device_->RunAll();
  PollFor(std::chrono::milliseconds(10));
  ASSERT_EQ(sink_.batches.size(), 1u);
  const StatColumns& sent = sink_.batches[0].stats;
  ASSERT_EQ(sent.size(), 2u);
  EXPECT_EQ(sink_.batches[0].steps.size(), 1u);
  const stats::cuda::Emulated expected = stats::cuda::Emulate(tensor_.View(), 16);
  EXPECT_EQ(sent.stats[0], expected.stats);
  EXPECT_EQ(std::vector<double>(sent.SketchOf(0).begin(), sent.SketchOf(0).end()), expected.sketch);
  EXPECT_EQ(sent.sample_count[0], 4u);
  EXPECT_EQ(sent.samples, stats::Compute(tensor_, 0, 4).samples);
}

TEST_F(CudaSlotsTest, SendsAListInItsOrder) {
  std::vector<stats::TestTensor> tensors;
  for (int i = 0; i < 6; ++i)
    tensors.push_back(stats::RandomNumbers(i % 2 == 0 ? DType::kF32 : DType::kBf16, {500}, random_));
  std::vector<CudaSlots::Item> items;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    Slot* slot = nullptr;
    const std::string name = "w" + std::to_string(i);
    ASSERT_TRUE(recorder_
                    .Begin({.name = name, .kind = Kind::kWeight}, true, tensors[i].View().dtype,
                           tensors[i].View().shape, &slot)
                    .ok());
    items.push_back({slot, tensors[i].View()});
  }
  std::size_t unimplemented = 9;
  cuda_.FillList(items, 0, kStream, &unimplemented);
  EXPECT_EQ(unimplemented, 0u);
  EXPECT_EQ(device_->launches, 2u) << "one a dtype";
  recorder_.EndStep();
  device_->RunAll();
  PollFor(std::chrono::milliseconds(300));
  ASSERT_EQ(sink_.batches.size(), 1u);
  const StatColumns& sent = sink_.batches[0].stats;
  ASSERT_EQ(sent.size(), tensors.size());
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    EXPECT_EQ(sent.activation[i], i);
    EXPECT_EQ(sent.stats[i], stats::cuda::Emulate(tensors[i].View(), 16).stats);
  }
}

TEST_F(CudaSlotsTest, CountsWhatAListLoses) {
  std::vector<CudaSlots::Item> items;
  for (int i = 0; i < 12; ++i) {  // there are eight records
    Slot* slot = nullptr;
    const std::string name = "w" + std::to_string(i);
    ASSERT_TRUE(
        recorder_.Begin({.name = name, .kind = Kind::kWeight}, true, DType::kF32, tensor_.View().shape, &slot)
            .ok());
    items.push_back({slot, tensor_.View()});
  }
  std::size_t unimplemented = 0;
  cuda_.FillList(items, 0, kStream, &unimplemented);
  device_->RunAll();
  PollFor(std::chrono::milliseconds(300));
  EXPECT_EQ(ledger_.Snapshot().dropped_by_cause["buffer_full"], 4u);
  EXPECT_EQ(RecordsSent(), 8u + 1) << "and an event that tells the losses";
}

// A step's end alone does not make a batch of what trickles in.
TEST_F(CudaSlotsTest, CollectsWhatTricklesInForAWhile) {
  for (int i = 0; i < 6; ++i) Observe("x" + std::to_string(i), tensor_.View());
  recorder_.EndStep();
  for (int i = 0; i < 6; ++i) {
    ASSERT_TRUE(device_->RunOne(kStream));
    PollFor(std::chrono::milliseconds(5));
  }
  EXPECT_EQ(sink_.batches.size(), 1u);
  EXPECT_EQ(RecordsSent(), 7u);
}

TEST_F(CudaSlotsTest, LooksAgainSoonWhileSomethingIsToCome) {
  Observe("a", tensor_.View());
  EXPECT_LE(batcher_.Poll(), clock_.Now() + Batcher::kFillerInterval);
  device_->RunAll();
  recorder_.EndStep();
  while (batcher_.Poll() <= clock_.Now()) {
  }
  EXPECT_EQ(RecordsSent(), 2u);
}

TEST_F(CudaSlotsTest, CountsWhatCouldNotBeComputedByCause) {
  for (int i = 0; i < 10; ++i) Observe("x" + std::to_string(i), tensor_.View());
  device_->capturing = {kStream};
  Observe("captured", tensor_.View());
  device_->capturing.clear();
  recorder_.EndStep();
  device_->RunAll();
  PollFor(std::chrono::seconds(2));
  const AgentCounters c = ledger_.Snapshot();
  EXPECT_EQ(c.dropped_by_cause.at("buffer_full"), 2u) << "10 tensors, 8 records";
  EXPECT_EQ(c.dropped_by_cause.at("graph_capture"), 1u);
  std::size_t sent = 0;
  for (const RecordBatch& batch : sink_.batches) sent += batch.stats.size();
  EXPECT_EQ(sent, 8u);
  EXPECT_EQ(c.pending, RecordsSent());
}

TEST_F(CudaSlotsTest, GoesOnWithoutAFailedDevice) {
  Observe("a", tensor_.View());
  Observe("b", tensor_.View());
  ASSERT_TRUE(device_->RunOne(kStream));
  device_->health = Status(Code::kInternal, "an illegal memory access");
  PollFor(std::chrono::milliseconds(300));
  Observe("c", tensor_.View());
  ObserveOnCpu("d");
  recorder_.EndStep();
  PollFor(std::chrono::seconds(2));
  const AgentCounters c = ledger_.Snapshot();
  EXPECT_EQ(c.dropped_by_cause.at("device_error"), 2u) << "b and c";
  std::size_t sent = 0;
  for (const RecordBatch& batch : sink_.batches) sent += batch.stats.size();
  EXPECT_EQ(sent, 2u) << "a and d";
  EXPECT_EQ(c.produced, c.pending + c.dropped());
}

TEST_F(CudaSlotsTest, ClosingCountsWhatTheDeviceNeverFinished) {
  Observe("a", tensor_.View());
  Observe("b", tensor_.View());
  recorder_.EndStep();
  SystemClock clock;
  Batcher batcher(&recorder_, &sink_, &ledger_, &waker_, &clock, 16, &cuda_);
  batcher.Start();
  recorder_.Refuse(kDropClosed);
  const auto before = clock.Now();
  batcher.Stop(before + std::chrono::milliseconds(100));
  EXPECT_LT(clock.Now(), before + std::chrono::seconds(5));
  recorder_.DropRest(kDropClosed);
  cuda_.Abandon();
  const AgentCounters c = ledger_.Snapshot();
  EXPECT_EQ(c.pending, 0u);
  EXPECT_EQ(c.dropped_by_cause.at("closed"), 3u);
  device_->RunAll();  // late: nobody looks any more
}

}  // namespace
}  // namespace statcollect
