// From a CUDA tensor to a batch, over a device made of host code: slots that are filled later.
#include "agent/cuda/slots.h"

#include <gtest/gtest.h>

#include <numeric>
#include <ostream>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "agent/cuda/captures.h"
#include "agent/export/batcher.h"
#include "agent/stats/exponents.h"
#include "common/names.h"
#include "tests/agent/stats/cuda/fake_cuda.h"
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
        recorder_
            .Begin({.name = name, .kind = Kind::kOutput}, false, tensor.dtype, tensor.shape, &slot)
            .ok());
    ASSERT_NE(slot, nullptr);
    ASSERT_TRUE(cuda_.Fill(slot, tensor, 0, kStream).ok());
  }
  void ObserveOnCpu(const std::string& name) {
    Slot* slot = nullptr;
    ASSERT_TRUE(
        recorder_
            .Begin({.name = name, .kind = Kind::kOutput}, false, DType::kF32, tensor_.shape, &slot)
            .ok());
    recorder_.Commit(slot);
  }
  // While the stream is captured. `handle`: the program counts the calls itself.
  void AddToGraph(const std::string& name, std::uint32_t call = 0) {
    GraphTensor tensor;
    ASSERT_TRUE(recorder_.graphs()
                    .AddToGraph({.name = name, .kind = Kind::kOutput, .call = call}, false,
                                DType::kF32, tensor_.View().shape, &tensor)
                    .ok());
    ASSERT_TRUE(cuda_
                    .AddToGraph(tensor, tensor_.View(), 0, kStream, recorder_.step(),
                                recorder_.StepWanted())
                    .ok());
  }
  // As Agent::EndStep does.
  void EndStep() {
    Slot* gate = nullptr;
    recorder_.EndStep(&gate);
    (void)cuda_.Mark(gate, cuda_.ReplayDevices(), recorder_.step(), recorder_.StepWanted());
  }
  struct Sent {
    std::string name;
    std::uint32_t call = 0;
    std::uint64_t step = 0;
    std::uint32_t order = 0;
    bool operator==(const Sent&) const = default;
    friend void PrintTo(const Sent& sent, std::ostream* out) {
      *out << sent.name << " call " << sent.call << " step " << sent.step << " order "
           << sent.order;
    }
  };
  // Tensors in the order of sending; ends of steps have no name. Checks what the collector checks.
  std::vector<Sent> AllSent() const {
    std::vector<Sent> all;
    std::vector<TensorDef> defs;
    std::set<std::pair<std::uint64_t, std::uint32_t>> seen;
    std::uint64_t step = 0;
    for (const RecordBatch& batch : sink_.batches) {
      defs.insert(defs.end(), batch.activations.begin(), batch.activations.end());
      for (std::size_t i = 0; i < batch.stats.size(); ++i) {
        const TensorDef& def = defs.at(batch.stats.activation[i]);
        EXPECT_EQ(def.id, batch.stats.activation[i]);
        EXPECT_GE(batch.stats.step[i], step) << "steps never decrease";
        step = batch.stats.step[i];
        EXPECT_TRUE(seen.emplace(step, def.id).second) << def.key.name << " twice in step " << step;
        all.push_back({def.key.name, def.key.call, step, batch.stats.order[i]});
      }
      for (const StepRecord& end : batch.steps) all.push_back({"", 0, end.step, 0});
    }
    return all;
  }
  std::vector<Sent> TensorsSent() const {
    std::vector<Sent> tensors = AllSent();
    std::erase_if(tensors, [](const Sent& sent) { return sent.name.empty(); });
    return tensors;
  }

  // As the batcher's thread would, for a while.
  void PollFor(std::chrono::milliseconds time) {
    for (const auto end = clock_.Now() + time; clock_.Now() < end;
         clock_.Advance(std::chrono::milliseconds(1))) {
      batcher_.Poll();
    }
  }
  void RunAndPoll() {
    while (device_->RunOne(kStream)) PollFor(std::chrono::milliseconds(1));
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
  CudaSlots cuda_{{.sketch = 16, .samples = 4, .records = 8, .records_max = 8},
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

TEST(CudaSlotsExponents, GoBehindTheirTensorInTheSameBatch) {
  testing::FakeClock clock;
  Ledger ledger;
  Waker waker;
  ListSink sink;
  Recorder recorder({.slots = 8, .sketch = 16, .exponents = *ParseExponentSpecs("a")}, &clock,
                    &ledger, &waker);
  const auto device = std::make_shared<FakeDevice>();
  CudaSlots cuda({.sketch = 16,
                  .exponent_lowest = kExponentLowest,
                  .exponents = kExponentsMax,
                  .records = 8,
                  .records_max = 8},
                 std::make_unique<FakeCudaApi>(device), &recorder, &clock);
  Batcher batcher(&recorder, &sink, &ledger, &waker, &clock, 16, &cuda);
  std::mt19937_64 random(1);
  const stats::TestTensor tensor = stats::RandomNumbers(DType::kF32, {3000}, random);
  ASSERT_TRUE(cuda.Check(tensor.View(), 0).ok());
  for (const char* name : {"b", "a"}) {
    Slot* slot = nullptr;
    ASSERT_TRUE(
        recorder
            .Begin({.name = name, .kind = Kind::kOutput}, false, DType::kF32, tensor.shape, &slot)
            .ok());
    ASSERT_NE(slot, nullptr);
    ASSERT_TRUE(cuda.Fill(slot, tensor.View(), 0, kStream).ok());
  }
  recorder.EndStep();
  device->RunAll();
  for (int i = 0; i < 300; ++i) {
    batcher.Poll();
    clock.Advance(std::chrono::milliseconds(1));
  }
  std::vector<ExponentRecord> sent;
  for (const RecordBatch& batch : sink.batches)
    sent.insert(sent.end(), batch.exponents.begin(), batch.exponents.end());
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_EQ(sent[0].activation, 1u);
  std::vector<std::uint64_t> all(kExponentsMax);
  stats::CountExponents(tensor.View(), kExponentLowest, all);
  const auto from = all.begin() + (sent[0].lowest - kExponentLowest);
  EXPECT_EQ(sent[0].counts, std::vector<std::uint64_t>(
                                from, from + static_cast<std::ptrdiff_t>(sent[0].counts.size())));
  EXPECT_EQ(std::accumulate(sent[0].counts.begin(), sent[0].counts.end(), std::uint64_t{0}), 3000u);
  EXPECT_EQ(ledger.Snapshot().dropped(), 0u);
}

TEST_F(CudaSlotsTest, SendsAListInItsOrder) {
  std::vector<stats::TestTensor> tensors;
  for (int i = 0; i < 6; ++i)
    tensors.push_back(
        stats::RandomNumbers(i % 2 == 0 ? DType::kF32 : DType::kBf16, {500}, random_));
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
    ASSERT_TRUE(recorder_
                    .Begin({.name = name, .kind = Kind::kWeight}, true, DType::kF32,
                           tensor_.View().shape, &slot)
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
  device_->BeginCapture({kStream});
  device_->capture_broken = true;
  AddToGraph("captured");
  (void)device_->EndCapture(kStream);
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

TEST_F(CudaSlotsTest, AnErrorThatDoesNotStickLosesWhatItWasForAndIsCounted) {
  Observe("a", tensor_.View());
  device_->launch = Status(Code::kInternal, "another thread has begun to capture");
  for (int i = 0; i < 20; ++i)
    Observe("b" + std::to_string(i), tensor_.View());  // there are eight records
  device_->launch = Status::Ok();
  Observe("c", tensor_.View());
  recorder_.EndStep();
  device_->RunAll();
  PollFor(std::chrono::seconds(2));
  const AgentCounters c = ledger_.Snapshot();
  EXPECT_EQ(c.dropped_by_cause.at("device_error"), 20u);
  std::size_t sent = 0;
  for (const RecordBatch& batch : sink_.batches) sent += batch.stats.size();
  EXPECT_EQ(sent, 2u) << "a and c";
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

TEST_F(CudaSlotsTest, RecordsEachReplayInTheStepThatTheDeviceWasIn) {
  device_->BeginCapture({kStream});
  AddToGraph("a", 3);  // the passes before the capture have had calls 0, 1 and 2
  AddToGraph("b");
  AddToGraph("a", 4);
  const auto graph = device_->EndCapture(kStream);
  device_->RunAll();
  PollFor(std::chrono::seconds(1));
  EXPECT_EQ(ledger_.Snapshot().produced, 0u) << "nothing is recorded while a graph is captured";

  cuda_.ReplaysIn(0, kStream);
  // The program is steps ahead of the device.
  for (int step = 0; step < 3; ++step) {
    for (int replay = 0; replay < step; ++replay) device_->Replay(*graph, kStream);
    ObserveOnCpu("loss");
    EndStep();
  }
  PollFor(std::chrono::seconds(1));
  EXPECT_EQ(TensorsSent(), (std::vector<Sent>{{"loss", 0, 0, 3}})) << "what comes later waits";
  RunAndPoll();
  PollFor(std::chrono::seconds(1));
  EXPECT_EQ(TensorsSent(), (std::vector<Sent>{{"loss", 0, 0, 3},
                                              {"loss", 0, 1, 0},
                                              {"a", 0, 1, 0},
                                              {"b", 0, 1, 1},
                                              {"a", 1, 1, 2},
                                              {"loss", 0, 2, 0},
                                              {"a", 0, 2, 0},
                                              {"b", 0, 2, 1},
                                              {"a", 1, 2, 2},
                                              {"a", 2, 2, 3},
                                              {"b", 1, 2, 4},
                                              {"a", 3, 2, 5}}));
  const AgentCounters c = ledger_.Snapshot();
  EXPECT_EQ(c.dropped(), 0u);
  EXPECT_EQ(c.produced, RecordsSent());
  const stats::cuda::Emulated expected = stats::cuda::Emulate(tensor_.View(), 16);
  const StatColumns& last = sink_.batches.back().stats;
  EXPECT_EQ(last.stats.back(), expected.stats);
  const std::span<const double> sketch = last.SketchOf(last.size() - 1);
  EXPECT_EQ(std::vector<double>(sketch.begin(), sketch.end()), expected.sketch);
  EXPECT_EQ(last.sample_count.back(), 4u);
}

TEST_F(CudaSlotsTest, StepsOutsideOfTheWindowAreNotReplayedIntoTheRecord) {
  recorder_.RecordSteps(*StepSet::Parse("1,3-4"));
  EndStep();  // takes it over
  device_->BeginCapture({kStream});
  AddToGraph("a");
  const auto graph = device_->EndCapture(kStream);
  cuda_.ReplaysIn(0, kStream);
  for (int step = 1; step < 7; ++step) {
    device_->Replay(*graph, kStream);
    EndStep();
    if (step % 2 == 0) RunAndPoll();
  }
  PollFor(std::chrono::seconds(1));
  EXPECT_EQ(TensorsSent(), (std::vector<Sent>{{"a", 0, 1, 0}, {"a", 0, 3, 0}, {"a", 0, 4, 0}}));
  EXPECT_EQ(ledger_.Snapshot().dropped(), 0u);
}

TEST_F(CudaSlotsTest, AnIdentityThatWasObservedInThisStepGetsItsNextCall) {
  Observe("a", tensor_.View());  // a pass before the capture
  device_->BeginCapture({kStream});
  AddToGraph("a", 1);
  const auto first = device_->EndCapture(kStream);
  device_->BeginCapture({kStream});
  AddToGraph("a", 2);
  const auto second = device_->EndCapture(kStream);  // for another shape, say
  cuda_.ReplaysIn(0, kStream);
  device_->Replay(*first, kStream);
  EndStep();
  device_->Replay(*second, kStream);
  device_->Replay(*first, kStream);
  EndStep();
  device_->RunAll();
  PollFor(std::chrono::seconds(1));
  const std::vector<Sent> sent = TensorsSent();
  ASSERT_EQ(sent.size(), 4u);
  EXPECT_EQ(sent[1].call, 1u);
  EXPECT_EQ(sent[2].call, 0u);
  EXPECT_EQ(sent[3].call, 1u);
  EXPECT_EQ(ledger_.Snapshot().dropped(), 0u);
}

TEST_F(CudaSlotsTest, CountsReplaysThatCameTooFastOrTooLate) {
  device_->BeginCapture({kStream});
  AddToGraph("a");
  const auto graph = device_->EndCapture(kStream);
  cuda_.ReplaysIn(0, kStream);
  for (int i = 0; i < 20; ++i) device_->Replay(*graph, kStream);  // the log has eight rows
  EndStep();
  device_->RunAll();
  PollFor(std::chrono::seconds(1));
  EXPECT_EQ(ledger_.Snapshot().dropped_by_cause.at("graph_replay"), 13u) << "and a mark was kept";
  EXPECT_EQ(TensorsSent().size(), 7u);

  // In a stream without an order to the marks.
  void* const other = reinterpret_cast<void*>(0x500);
  device_->Replay(*graph, other);
  EndStep();
  EndStep();
  while (device_->RunOne(kStream)) {
  }
  PollFor(std::chrono::seconds(1));
  ObserveOnCpu("later");
  EndStep();
  device_->RunAll();
  PollFor(std::chrono::seconds(1));
  EndStep();
  device_->RunAll();
  PollFor(std::chrono::seconds(1));
  const AgentCounters c = ledger_.Snapshot();
  EXPECT_EQ(c.produced, RecordsSent() + c.dropped());
  EXPECT_EQ(TensorsSent().size(), 9u);
}

TEST_F(CudaSlotsTest, AFullBufferLosesReplaysAndNothingElse) {
  device_->BeginCapture({kStream});
  AddToGraph("a");
  const auto graph = device_->EndCapture(kStream);
  cuda_.ReplaysIn(0, kStream);
  device_->Replay(*graph, kStream);
  for (int i = 0; i < 64; ++i)
    ObserveOnCpu("x" + std::to_string(i));  // all slots: none for the gate
  EndStep();
  device_->RunAll();
  PollFor(std::chrono::seconds(1));
  device_->Replay(*graph, kStream);
  EndStep();
  device_->RunAll();
  PollFor(std::chrono::seconds(1));
  const std::vector<Sent> sent = TensorsSent();
  ASSERT_EQ(sent.size(), 65u);
  EXPECT_EQ(sent.back().name, "a");
  EXPECT_EQ(sent.back().step, 1u);
  EXPECT_EQ(ledger_.Snapshot().dropped_by_cause.at("buffer_full"), 1u);
}

TEST_F(CudaSlotsTest, GatesOpenWhenTheDeviceFails) {
  device_->BeginCapture({kStream});
  AddToGraph("a");
  const auto graph = device_->EndCapture(kStream);
  cuda_.ReplaysIn(0, kStream);
  device_->Replay(*graph, kStream);
  EndStep();
  ObserveOnCpu("b");
  EndStep();
  device_->health = Status(Code::kInternal, "an illegal memory access");
  PollFor(std::chrono::seconds(2));
  EXPECT_EQ(TensorsSent(), (std::vector<Sent>{{"b", 0, 1, 0}}));
}

TEST_F(CudaSlotsTest, AMarkInTheMiddleOfAStepLetsThroughWhatWasReplayed) {
  device_->BeginCapture({kStream});
  AddToGraph("a");
  auto graph = device_->EndCapture(kStream);
  cuda_.ReplaysIn(0, kStream);
  device_->Replay(*graph, kStream);
  const std::uint64_t mark =
      cuda_.Mark(recorder_.graphs().Gate(), cuda_.ReplayDevices(), recorder_.step(), true);
  device_->Replay(*graph, kStream);
  EXPECT_FALSE(cuda_.WaitMarked(mark, std::chrono::steady_clock::now()));
  device_->RunAll();
  PollFor(std::chrono::seconds(1));
  EXPECT_TRUE(cuda_.WaitMarked(mark, std::chrono::steady_clock::now()));
  EXPECT_EQ(TensorsSent().size(), 2u) << "both had come when the gate opened";
  EndStep();
  graph.reset();
  device_->RunAll();
  PollFor(std::chrono::seconds(2));
  EXPECT_TRUE(cuda_.ReplayDevices().empty());
  EXPECT_EQ(batcher_.Poll(), Batcher::TimePoint::max()) << "nothing left to look for";
}

// Nobody tells of a replay, so the batcher has to look from the capture on.
TEST_F(CudaSlotsTest, ABatcherThatSleepsIsWokenByACapture) {
  SystemClock clock;
  Batcher batcher(&recorder_, &sink_, &ledger_, &waker_, &clock, 16, &cuda_);
  batcher.Start();
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  device_->BeginCapture({kStream});
  AddToGraph("a");
  const auto graph = device_->EndCapture(kStream);
  cuda_.ReplaysIn(0, kStream);
  device_->Replay(*graph, kStream);
  const std::uint64_t mark =
      cuda_.Mark(recorder_.graphs().Gate(), cuda_.ReplayDevices(), recorder_.step(), true);
  device_->RunAll();
  EXPECT_TRUE(cuda_.WaitMarked(mark, clock.Now() + std::chrono::seconds(20)));
  batcher.Stop(clock.Now() + std::chrono::seconds(20));
  EXPECT_EQ(TensorsSent().size(), 1u);
}

TEST_F(CudaSlotsTest, ClosingCountsWhatWasReplayedAndNotSent) {
  device_->BeginCapture({kStream});
  AddToGraph("a");
  const auto graph = device_->EndCapture(kStream);
  device_->Replay(*graph, kStream);
  device_->RunAll();
  (void)cuda_.Poll();
  recorder_.Refuse(kDropClosed);
  recorder_.DropRest(kDropClosed);
  cuda_.Abandon();
  device_->RunAll();
  device_->Replay(*graph, kStream);
  device_->RunAll();
  const AgentCounters c = ledger_.Snapshot();
  EXPECT_EQ(c.pending, 0u);
  EXPECT_EQ(c.produced, 1u);
  EXPECT_EQ(c.dropped_by_cause.at("closed"), 1u);
}

class CudaCapturesTest : public ::testing::Test {
 protected:
  // Of the first `elements` elements.
  CapturedTensor* Reserve(const stats::CpuTensor& tensor, std::uint64_t elements) {
    return queue_.Reserve({.step = 4, .requests = "7"}, elements,
                          elements * DTypeBytes(tensor.dtype));
  }
  // What the elements are, in row-major order.
  static std::string Expected(const stats::CpuTensor& tensor, std::uint64_t elements) {
    std::string bytes(elements * DTypeBytes(tensor.dtype), '\0');
    stats::CopyElements(tensor, elements, bytes.data());
    return bytes;
  }
  std::string Taken() {
    std::string bytes;
    while (queue_.HasReady()) bytes += queue_.Pop().data;
    return bytes;
  }

  Ledger ledger_;
  CaptureQueue queue_{&ledger_};
  const std::shared_ptr<FakeDevice> device_ = std::make_shared<FakeDevice>();
  std::vector<std::string> lost_;
  CudaCaptures captures_{
      std::make_unique<FakeCudaApi>(device_),
      [this](const CaptureTarget&, const std::string& why) { lost_.push_back(why); }};
  std::vector<float> numbers_ = [] {
    std::vector<float> numbers(4096);
    for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<float>(i) * 0.5f;
    return numbers;
  }();
};

TEST_F(CudaCapturesTest, TheValuesComeOnceTheDeviceHasCopiedThem) {
  const std::int64_t shape[] = {8, 16};
  const stats::CpuTensor tensor{numbers_.data(), DType::kF32, shape, {}};
  ASSERT_TRUE(captures_.Copy(Reserve(tensor, 128), tensor, 0, kStream).ok());
  EXPECT_EQ(captures_.Poll(), 1u);
  EXPECT_FALSE(queue_.HasReady());
  device_->RunAll();
  EXPECT_EQ(captures_.Poll(), 0u);
  EXPECT_EQ(Taken(), Expected(tensor, 128));
  EXPECT_EQ(device_->allocations.size(), 1u) << "the pinned memory, kept for the next one";
}

TEST_F(CudaCapturesTest, AnyStridesComeInLogicalOrder) {
  const std::int64_t shape[] = {16, 8, 3};
  for (const std::vector<std::int64_t>& strides :
       {std::vector<std::int64_t>{1, 16, 200}, {-24, 3, 1}, {30, 0, 1}, {1, -16, 130}}) {
    const stats::CpuTensor tensor{numbers_.data() + 2000, DType::kF32, shape, strides};
    for (const std::uint64_t elements : {384u, 48u, 5u}) {
      ASSERT_TRUE(captures_.Copy(Reserve(tensor, elements), tensor, 0, kStream).ok());
      device_->RunAll();
      EXPECT_EQ(captures_.Poll(), 0u);
      EXPECT_EQ(Taken(), Expected(tensor, elements)) << strides[0] << " " << elements;
    }
  }
  const stats::CpuTensor scalar{numbers_.data() + 3, DType::kF32, {}, {}};
  ASSERT_TRUE(captures_.Copy(Reserve(scalar, 1), scalar, 0, kStream).ok());
  device_->RunAll();
  (void)captures_.Poll();
  EXPECT_EQ(Taken(), Expected(scalar, 1));
  const std::int64_t none[] = {0, 4};
  const stats::CpuTensor empty{nullptr, DType::kF32, none, {}};
  ASSERT_TRUE(captures_.Copy(Reserve(empty, 0), empty, 0, kStream).ok());
  device_->RunAll();
  (void)captures_.Poll();
  EXPECT_TRUE(queue_.HasReady()) << "one chunk without bytes";
}

// A transposed row has no gaps either, but its first elements are not its first bytes.
TEST_F(CudaCapturesTest, APartOfATransposedRowIsCopiedFromWhereverItLies) {
  const std::int64_t shape[] = {4, 8, 3};
  const std::int64_t strides[] = {24, 1, 8};
  const stats::CpuTensor tensor{numbers_.data() + 100, DType::kF32, shape, strides};
  ASSERT_TRUE(captures_.Copy(Reserve(tensor, 7), tensor, 0, kStream).ok());
  device_->RunAll();
  EXPECT_EQ(captures_.Poll(), 0u);
  EXPECT_EQ(Taken(), Expected(tensor, 7));
}

TEST_F(CudaCapturesTest, WhatCannotBeCopiedIsSaidAndCounted) {
  const std::int64_t shape[] = {8, 16};
  const stats::CpuTensor tensor{numbers_.data(), DType::kF32, shape, {}};
  device_->BeginCapture({kStream});
  EXPECT_EQ(captures_.Copy(Reserve(tensor, 128), tensor, 0, kStream).code(),
            Code::kFailedPrecondition);
  (void)device_->EndCapture(kStream);
  const std::int64_t wide[] = {(32 << 20) / 8, 1};
  const stats::CpuTensor spread{numbers_.data(), DType::kF32, shape, wide};
  EXPECT_EQ(captures_.Copy(Reserve(spread, 128), spread, 0, kStream).code(), Code::kOutOfRange);
  const AgentCounters counters = ledger_.Snapshot();
  EXPECT_EQ(counters.dropped_by_cause.at("graph_capture"), 1u);
  EXPECT_EQ(counters.dropped_by_cause.at("capture_strides"), 1u);
  EXPECT_EQ(counters.pending, 0u);
}

TEST_F(CudaCapturesTest, PinnedMemoryIsSharedOutAndComesBack) {
  const std::int64_t shape[] = {12 << 20};
  std::vector<float> large(12u << 20, 1.5f);  // 48 of 64 MiB
  const stats::CpuTensor tensor{large.data(), DType::kF32, shape, {}};
  ASSERT_TRUE(captures_.Copy(Reserve(tensor, large.size()), tensor, 0, kStream).ok());
  EXPECT_EQ(captures_.Copy(Reserve(tensor, large.size()), tensor, 0, kStream).code(),
            Code::kResourceExhausted);
  const std::int64_t small_shape[] = {100};
  const stats::CpuTensor small{numbers_.data(), DType::kF32, small_shape, {}};
  ASSERT_TRUE(captures_.Copy(Reserve(small, 100), small, 0, kStream).ok())
      << "beside the large one";
  device_->RunAll();
  EXPECT_EQ(captures_.Poll(), 0u);
  EXPECT_EQ(Taken().size(), (large.size() + 100) * 4);
  EXPECT_TRUE(captures_.Copy(Reserve(tensor, large.size()), tensor, 0, kStream).ok());
  device_->RunAll();
  EXPECT_EQ(captures_.Poll(), 0u);
}

TEST_F(CudaCapturesTest, AFullQueueOfAStreamDoesNotHoldUpTheBatcher) {
  const std::int64_t shape[] = {8, 16};
  const stats::CpuTensor tensor{numbers_.data(), DType::kF32, shape, {}};
  void* const other = reinterpret_cast<void*>(0x200);
  device_->Block(kStream);
  std::thread blocked(
      [&] { EXPECT_TRUE(captures_.Copy(Reserve(tensor, 128), tensor, 0, kStream).ok()); });
  device_->AwaitBlocked(1);
  ASSERT_TRUE(captures_.Copy(Reserve(tensor, 128), tensor, 0, other).ok());
  device_->RunAll();
  EXPECT_EQ(captures_.Poll(), 1u) << "the one that waits";
  EXPECT_EQ(Taken(), Expected(tensor, 128));
  device_->Unblock();
  blocked.join();
  device_->RunAll();
  EXPECT_EQ(captures_.Poll(), 0u);
  EXPECT_EQ(Taken(), Expected(tensor, 128));
}

TEST_F(CudaCapturesTest, ACopyThatIsRefusedGivesItsPlaceBackOnce) {
  const std::int64_t shape[] = {8, 16};
  const stats::CpuTensor tensor{numbers_.data(), DType::kF32, shape, {}};
  device_->launch = Status(Code::kInternal, "it does not stick");
  EXPECT_EQ(captures_.Copy(Reserve(tensor, 128), tensor, 0, kStream).code(), Code::kInternal);
  EXPECT_EQ(captures_.Poll(), 0u);
  EXPECT_EQ(ledger_.Snapshot().dropped_by_cause.at("device_error"), 1u);
  EXPECT_TRUE(queue_.empty());
}

TEST_F(CudaCapturesTest, ADeviceThatFailsLosesItAndIsTold) {
  const std::int64_t shape[] = {8, 16};
  const stats::CpuTensor tensor{numbers_.data(), DType::kF32, shape, {}};
  ASSERT_TRUE(captures_.Copy(Reserve(tensor, 128), tensor, 0, kStream).ok());
  device_->health = Status(Code::kInternal, "the device is gone");
  EXPECT_EQ(captures_.Poll(), 0u);
  EXPECT_EQ(lost_, std::vector<std::string>{"the device is gone"});
  EXPECT_EQ(ledger_.Snapshot().dropped_by_cause.at("device_error"), 1u);
}

TEST_F(CudaCapturesTest, WhatIsOnItsWayWhenTheAgentClosesIsCounted) {
  const std::int64_t shape[] = {8, 16};
  const stats::CpuTensor tensor{numbers_.data(), DType::kF32, shape, {}};
  ASSERT_TRUE(captures_.Copy(Reserve(tensor, 128), tensor, 0, kStream).ok());
  captures_.Abandon();
  EXPECT_EQ(ledger_.Snapshot().dropped_by_cause.at("closed"), 1u);
  EXPECT_TRUE(queue_.empty());
  EXPECT_EQ(captures_.Copy(Reserve(tensor, 128), tensor, 0, kStream).code(), Code::kAborted);
}

}  // namespace
}  // namespace statcollect
