#include "agent/export/batcher.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tests/support/fake_clock.h"

namespace statcollect {
namespace {

using std::chrono::milliseconds;
using TimePoint = Batcher::TimePoint;

constexpr std::array<std::int64_t, 1> kShape = {8};

class FakeSink final : public BatchSink {
 public:
  bool HasRoom() override { return room > 0 && !failed; }
  std::size_t BatchBytesMax() override { return bytes_max; }
  void Submit(RecordBatch batch, std::size_t bytes) override {
    --room;
    sizes.push_back(bytes);
    batches.push_back(std::move(batch));
  }
  bool Failed() override { return failed; }

  int room = 1000;
  bool failed = false;
  std::size_t bytes_max = 1u << 20;
  std::vector<RecordBatch> batches;
  std::vector<std::size_t> sizes;
};

class BatcherTest : public ::testing::Test {
 protected:
  void Make(std::size_t slots = 8192, std::uint32_t samples = 0) {
    recorder_ = std::make_unique<Recorder>(
        Recorder::Options{.slots = slots, .sketch = 16, .samples = samples}, &clock_, &ledger_,
        &waker_);
    batcher_ = std::make_unique<Batcher>(recorder_.get(), &sink_, &ledger_, &waker_, &clock_, 16);
  }

  void Observe(const std::string& name, std::uint32_t samples = 0) {
    Slot* slot = nullptr;
    const Status status =
        recorder_->Begin({.name = name, .kind = Kind::kOutput}, false, DType::kF32, kShape, &slot);
    ASSERT_TRUE(status.ok()) << status.message();
    if (slot == nullptr) return;
    slot->sample_count = samples;
    recorder_->Commit(slot);
  }

  // Polls until there is nothing to do now.
  void PollAll() {
    while (batcher_->Poll() <= clock_.Now()) {
    }
  }

  testing::FakeClock clock_;
  Ledger ledger_;
  Waker waker_;
  FakeSink sink_;
  std::unique_ptr<Recorder> recorder_;
  std::unique_ptr<Batcher> batcher_;
};

TEST_F(BatcherTest, SendsAtTheEndOfAStep) {
  Make();
  Observe("fc1");
  PollAll();
  EXPECT_TRUE(sink_.batches.empty()) << "neither full, nor old, nor the step's end";
  Observe("fc2");
  ASSERT_TRUE(recorder_->log().LogScalar("loss", 1.5, 0).ok());
  recorder_->EndStep();
  PollAll();
  ASSERT_EQ(sink_.batches.size(), 1u);
  const RecordBatch& batch = sink_.batches[0];
  EXPECT_EQ(batch.stats.activation, (std::vector<std::uint32_t>{0, 1}));
  EXPECT_EQ(batch.activations.size(), 2u);
  EXPECT_EQ(batch.layouts.size(), 1u);
  EXPECT_EQ(batch.scalars.size(), 1u);
  EXPECT_EQ(batch.steps.size(), 1u);
  EXPECT_EQ(batch.stats.sketch.size(), 32u);
}

class NormTest : public BatcherTest {
 protected:
  void Gradient(const std::string& name, TensorStats stats, Kind kind = Kind::kWeightGrad,
                std::uint32_t call = 0) {
    Slot* slot = nullptr;
    ASSERT_TRUE(
        recorder_
            ->Begin({.name = name, .kind = kind, .call = call}, false, DType::kF32, kShape, &slot)
            .ok());
    if (slot == nullptr) return;
    slot->stats = stats;
    recorder_->Commit(slot);
  }
  static TensorStats OfNorm(double l2) { return {.numel = 8, .has_finite = true, .l2 = l2}; }
  std::vector<ScalarRecord> Norms() {
    recorder_->EndStep();
    clock_.Advance(milliseconds(100));
    PollAll();
    std::vector<ScalarRecord> found;
    for (const RecordBatch& batch : sink_.batches) {
      for (const ScalarRecord& scalar : batch.scalars) {
        if (scalar.name == "grad_norm") found.push_back(scalar);
      }
    }
    sink_.batches.clear();
    return found;
  }
};

TEST_F(NormTest, OfAllWeightGradientsIsAScalarOfTheStep) {
  Make();
  Gradient("a.weight", OfNorm(3));
  Gradient("a.weight", OfNorm(100), Kind::kWeight);
  Gradient("a.weight", OfNorm(100), Kind::kWeightGrad, 1);
  Gradient("b.weight", OfNorm(4));
  auto norms = Norms();
  ASSERT_EQ(norms.size(), 1u);
  EXPECT_DOUBLE_EQ(norms[0].value, 5);
  EXPECT_EQ(norms[0].step, 0u);
  EXPECT_TRUE(Norms().empty()) << "no gradients in step 1";
  Gradient("b.weight", OfNorm(2));
  norms = Norms();
  ASSERT_EQ(norms.size(), 1u);
  EXPECT_EQ(norms[0].step, 2u);
  EXPECT_DOUBLE_EQ(norms[0].value, 2);
  EXPECT_EQ(ledger_.Snapshot().produced, 5u + 2u + 3u) << "tensors, norms, step ends";
}

TEST_F(NormTest, IsNotFiniteIfAnElementIsNot) {
  Make();
  TensorStats infinite = OfNorm(1), nan = OfNorm(1);
  infinite.neg_inf = 1;
  nan.nan = 1;
  Gradient("a", infinite);
  EXPECT_TRUE(std::isinf(Norms().at(0).value));
  Gradient("a", nan);
  Gradient("b", infinite);
  EXPECT_TRUE(std::isnan(Norms().at(0).value));
}

TEST_F(NormTest, IsLeftOutWhenPartOfItWasLost) {
  Make(2);
  for (const char* name : {"a", "b", "c"}) Gradient(name, OfNorm(1));
  EXPECT_TRUE(Norms().empty());
  Gradient("a", OfNorm(1));
  EXPECT_EQ(Norms().size(), 1u) << "the next step is whole";
}

TEST_F(NormTest, IsLeftToAProgramThatLogsItsOwn) {
  Make();
  Gradient("a", OfNorm(1));
  ASSERT_TRUE(recorder_->log().LogScalar("grad_norm", 7, 0).ok());
  auto norms = Norms();
  ASSERT_EQ(norms.size(), 1u);
  EXPECT_EQ(norms[0].value, 7);
  Gradient("a", OfNorm(1));
  EXPECT_TRUE(Norms().empty());
}

TEST_F(BatcherTest, ShortStepsShareABatch) {
  Make();
  const TimePoint first = clock_.Now();
  for (int step = 0; step < 3; ++step) {
    Observe("fc1");
    recorder_->EndStep();
    const TimePoint next = batcher_->Poll();
    if (step == 0) {
      EXPECT_EQ(next, first) << "sent; look again at once";
    }
    if (step > 0) {
      EXPECT_EQ(next, first + Batcher::kStepSpacing);
    }
    clock_.Advance(Batcher::kStepSpacing / 5);
  }
  ASSERT_EQ(sink_.batches.size(), 1u);
  clock_.Advance(Batcher::kStepSpacing);
  PollAll();
  ASSERT_EQ(sink_.batches.size(), 2u);
  EXPECT_EQ(sink_.batches[1].steps.size(), 2u);
  EXPECT_EQ(sink_.batches[1].stats.size(), 2u);
}

TEST_F(BatcherTest, AFlushDoesNotWaitForTheNextStepsBatch) {
  Make();
  for (int step = 0; step < 2; ++step) {
    Observe("fc1");
    recorder_->EndStep();
    PollAll();
  }
  ASSERT_EQ(sink_.batches.size(), 1u);
  batcher_->Flush();
  PollAll();
  EXPECT_EQ(sink_.batches.size(), 2u);
}

TEST_F(BatcherTest, SendsWhatIsOldEnough) {
  Make();
  Observe("fc1");
  const TimePoint next = batcher_->Poll();
  EXPECT_EQ(next, clock_.Now() + Batcher::kBatchAge);
  clock_.Advance(Batcher::kBatchAge - milliseconds(1));
  PollAll();
  EXPECT_TRUE(sink_.batches.empty());
  clock_.Advance(milliseconds(1));
  PollAll();
  EXPECT_EQ(sink_.batches.size(), 1u);
}

TEST_F(BatcherTest, SendsAFullBatchAtOnce) {
  Make();
  for (std::size_t i = 0; i < kBatchRecords + 10; ++i) Observe("x" + std::to_string(i));
  PollAll();
  ASSERT_EQ(sink_.batches.size(), 1u);
  EXPECT_EQ(sink_.batches[0].records(), kBatchRecords);
}

TEST_F(BatcherTest, DefinesAnActivationInTheFirstBatchThatUsesIt) {
  Make();
  Observe("fc1");
  recorder_->EndStep();
  PollAll();
  clock_.Advance(Batcher::kStepSpacing);
  Observe("fc1");
  Observe("fc2");
  recorder_->EndStep();
  PollAll();
  ASSERT_EQ(sink_.batches.size(), 2u);
  EXPECT_EQ(sink_.batches[0].activations.size(), 1u);
  ASSERT_EQ(sink_.batches[1].activations.size(), 1u);
  EXPECT_EQ(sink_.batches[1].activations[0].key.name, "fc2");
  EXPECT_EQ(sink_.batches[1].activations[0].id, 1u);
  EXPECT_TRUE(sink_.batches[1].layouts.empty());
}

TEST_F(BatcherTest, KeepsBatchesBelowTheByteLimit) {
  Make(8192, 1024);
  sink_.bytes_max = 50'000;
  for (int i = 0; i < 40; ++i) Observe("x" + std::to_string(i), 1024);
  recorder_->EndStep();
  clock_.Advance(Batcher::kBatchAge);
  for (int i = 0; i < 100; ++i) {
    batcher_->Poll();
    clock_.Advance(Batcher::kBatchAge);
  }
  EXPECT_GT(sink_.batches.size(), 5u);
  std::size_t records = 0;
  for (std::size_t i = 0; i < sink_.batches.size(); ++i) {
    EXPECT_LE(sink_.sizes[i], sink_.bytes_max);
    records += sink_.batches[i].records();
  }
  EXPECT_EQ(records, 41u);
}

TEST_F(BatcherTest, LeavesRecordsInTheRingWhileTheWindowIsFull) {
  Make(4);
  sink_.room = 0;
  for (int i = 0; i < 6; ++i) Observe("x" + std::to_string(i));
  recorder_->EndStep();
  EXPECT_EQ(batcher_->Poll(), TimePoint::max()) << "woken when there is room";
  EXPECT_EQ(ledger_.Snapshot().dropped_by_cause.at("buffer_full"), 2u);
  sink_.room = 1000;
  PollAll();
  EXPECT_EQ(sink_.batches.at(0).stats.size(), 4u);
}

TEST_F(BatcherTest, ReportsLossesAsARecordAtMostOnceASecond) {
  Make(1);
  Observe("kept");
  Observe("lost1");
  recorder_->EndStep();
  PollAll();
  ASSERT_EQ(sink_.batches.size(), 1u);
  ASSERT_EQ(sink_.batches[0].events.size(), 1u);
  EXPECT_EQ(sink_.batches[0].events[0].kind, "records_dropped");
  EXPECT_EQ(sink_.batches[0].events[0].fields,
            (std::map<std::string, std::string>{{"cause", "buffer_full"}, {"count", "1"}}));

  clock_.Advance(Batcher::kStepSpacing);
  Observe("kept");
  Observe("lost1");
  Observe("lost2");
  recorder_->EndStep();
  PollAll();
  ASSERT_EQ(sink_.batches.size(), 2u);
  EXPECT_TRUE(sink_.batches[1].events.empty()) << "within the second";
  clock_.Advance(Batcher::kLossReportInterval);
  batcher_->Poll();
  batcher_->Flush();
  PollAll();
  ASSERT_EQ(sink_.batches.size(), 3u);
  EXPECT_EQ(sink_.batches[2].events.at(0).fields.at("count"), "2");
  const AgentCounters c = ledger_.Snapshot();
  EXPECT_EQ(c.produced, c.pending + c.dropped()) << "reports are records too";
  EXPECT_EQ(c.pending,
            sink_.batches[0].records() + sink_.batches[1].records() + sink_.batches[2].records());
}

TEST_F(BatcherTest, DropsEverythingOnceTheSinkHasFailed) {
  Make();
  Observe("fc1");
  recorder_->EndStep();
  sink_.failed = true;
  batcher_->Poll();
  const AgentCounters c = ledger_.Snapshot();
  EXPECT_EQ(c.pending, 0u);
  EXPECT_EQ(c.dropped_by_cause.at("rejected"), 2u);
  EXPECT_TRUE(sink_.batches.empty());
}

TEST_F(BatcherTest, KeepsAStepsTensorsBeforeItsEndAcrossBatches) {
  Make();
  sink_.bytes_max = 2000;
  for (int step = 0; step < 5; ++step) {
    for (int i = 0; i < 20; ++i) Observe("x" + std::to_string(i));
    recorder_->EndStep();
  }
  PollAll();
  std::uint64_t ended = 0;
  std::uint64_t last = 0;
  for (const RecordBatch& batch : sink_.batches) {
    for (const std::uint64_t step : batch.stats.step) {
      EXPECT_GE(step, last);
      EXPECT_GE(step, ended) << "a tensor after its step's end";
      last = step;
    }
    for (const StepRecord& end : batch.steps) ended = end.step + 1;
  }
  EXPECT_EQ(ended, 5u);
}

TEST_F(BatcherTest, StopSendsTheRestAndReportsTheLastLosses) {
  Make(1);
  SystemClock clock;
  Batcher batcher(recorder_.get(), &sink_, &ledger_, &waker_, &clock, 16);
  batcher.Start();
  Observe("kept");
  recorder_->Refuse(kDropClosed);
  batcher.Stop(std::chrono::steady_clock::now() + std::chrono::seconds(30));
  ASSERT_FALSE(sink_.batches.empty());
  EXPECT_EQ(sink_.batches[0].stats.size(), 1u);
}

TEST_F(BatcherTest, StopEndsAtItsDeadlineWhenThereIsNoRoom) {
  Make();
  SystemClock clock;
  sink_.room = 0;
  Batcher batcher(recorder_.get(), &sink_, &ledger_, &waker_, &clock, 16);
  batcher.Start();
  Observe("fc1");
  recorder_->EndStep();
  batcher.Stop(std::chrono::steady_clock::now() + milliseconds(50));
  recorder_->DropRest(kDropClosed);
  EXPECT_EQ(ledger_.Snapshot().dropped_by_cause.at("closed"), 2u);
  EXPECT_EQ(ledger_.Snapshot().pending, 0u);
}

class CaptureBatchTest : public BatcherTest {
 protected:
  // Observes and captures: as the agent does.
  void Capture(const std::string& name, std::uint64_t bytes, bool commit = true) {
    Slot* slot = nullptr;
    std::optional<CaptureTarget> target;
    recorder_->pending_captures().Add(
        *CaptureSpec::Parse(name + "@" + std::to_string(recorder_->step())), name);
    ASSERT_TRUE(recorder_
                    ->Begin({.name = name, .kind = Kind::kOutput}, false, DType::kU8, kShape, &slot,
                            &target)
                    .ok());
    recorder_->Commit(slot);
    ASSERT_TRUE(target);
    captured_ = recorder_->captures().Reserve(*std::move(target), bytes, bytes);
    ASSERT_NE(captured_, nullptr);
    std::fill_n(captured_->data(), bytes, static_cast<unsigned char>(name[0]));
    if (commit) recorder_->captures().Commit(captured_);
  }
  CapturedTensor* captured_ = nullptr;
};

TEST_F(CaptureBatchTest, AChunkABatchWithTheDefinitionsAndTheEventWithTheLast) {
  Make();
  Capture("a", 2 * CaptureQueue::kChunkBytes + 3);
  recorder_->EndStep();
  PollAll();
  ASSERT_EQ(sink_.batches.size(), 3u);
  std::string values;
  for (const RecordBatch& batch : sink_.batches) {
    ASSERT_EQ(batch.captures.size(), 1u);
    EXPECT_EQ(batch.captures[0].offset, values.size());
    values += batch.captures[0].data;
  }
  EXPECT_EQ(values, std::string(2 * CaptureQueue::kChunkBytes + 3, 'a'));
  EXPECT_EQ(sink_.batches[0].activations.size(), 1u);
  EXPECT_EQ(sink_.batches[0].layouts.size(), 1u);
  EXPECT_TRUE(sink_.batches[1].events.empty());
  ASSERT_EQ(sink_.batches[2].events.size(), 1u);
  EXPECT_EQ(sink_.batches[2].events[0].kind, "capture");
  EXPECT_EQ(sink_.batches[2].events[0].fields.at("request"), "a");
  EXPECT_EQ(ledger_.Snapshot().produced, ledger_.Snapshot().pending);
  EXPECT_EQ(ledger_.Snapshot().pending, 3u + 1 + 1 + 1) << "chunks, event, statistics, step end";
}

TEST_F(CaptureBatchTest, TheEndOfItsStepWaitsForTheValues) {
  Make();
  Capture("a", 10, /*commit=*/false);
  recorder_->EndStep();
  Observe("later");
  clock_.Advance(milliseconds(300));
  PollAll();
  for (const RecordBatch& batch : sink_.batches)
    EXPECT_TRUE(batch.steps.empty()) << "still being copied";
  recorder_->captures().Commit(captured_);
  PollAll();
  clock_.Advance(milliseconds(300));
  PollAll();
  std::size_t captured_at = 99, ended_at = 99;
  for (std::size_t i = 0; i < sink_.batches.size(); ++i) {
    if (!sink_.batches[i].captures.empty()) captured_at = i;
    if (!sink_.batches[i].steps.empty()) ended_at = i;
  }
  EXPECT_LE(captured_at, ended_at);
  EXPECT_NE(ended_at, 99u);
}

class OldCollector final : public BatchSink {
 public:
  bool HasRoom() override { return true; }
  std::size_t BatchBytesMax() override { return 1u << 20; }
  void Submit(RecordBatch batch, std::size_t) override { batches.push_back(std::move(batch)); }
  std::optional<bool> TakesCaptures() override { return takes; }
  bool Failed() override { return false; }
  std::optional<bool> takes;
  std::vector<RecordBatch> batches;
};

// With a spill file the sink has room all the while; what it would lose is everything.
TEST_F(CaptureBatchTest, NothingWaitsForValuesBeforeACollectorHasAnswered) {
  Make();
  OldCollector away;
  Batcher batcher(recorder_.get(), &away, &ledger_, &waker_, &clock_, 16);
  Capture("a", 10);
  recorder_->EndStep();
  Observe("later");
  recorder_->EndStep();
  const auto poll = [&] {
    for (int i = 0; i < 20; ++i) {
      clock_.Advance(milliseconds(250));
      (void)batcher.Poll();
    }
  };
  poll();
  std::size_t steps = 0, chunks = 0;
  for (const RecordBatch& batch : away.batches) steps += batch.steps.size();
  EXPECT_EQ(steps, 2u);
  away.takes = true;
  poll();
  for (const RecordBatch& batch : away.batches) chunks += batch.captures.size();
  EXPECT_EQ(chunks, 1u);
  EXPECT_TRUE(recorder_->captures().empty());
}

TEST_F(CaptureBatchTest, ACollectorThatKnowsNoCapturesGetsNoneAndTheLossIsToldAndCounted) {
  Make();
  OldCollector old;
  Batcher batcher(recorder_.get(), &old, &ledger_, &waker_, &clock_, 16);
  Capture("a", 10);
  recorder_->EndStep();
  const auto poll = [&] {
    for (int i = 0; i < 20; ++i) {
      clock_.Advance(milliseconds(250));
      (void)batcher.Poll();
    }
  };
  poll();
  for (const RecordBatch& batch : old.batches)
    EXPECT_TRUE(batch.captures.empty()) << "not known yet";
  EXPECT_FALSE(recorder_->captures().empty());
  old.takes = false;
  poll();
  EXPECT_TRUE(recorder_->captures().empty());
  EXPECT_EQ(ledger_.Snapshot().dropped_by_cause.at("capture_refused"), 1u);
  bool told = false, ended = false;
  for (const RecordBatch& batch : old.batches) {
    EXPECT_TRUE(batch.captures.empty());
    ended = ended || !batch.steps.empty();
    for (const EventRecord& event : batch.events) told = told || event.kind == "capture_missed";
  }
  EXPECT_TRUE(told);
  EXPECT_TRUE(ended);
}

}  // namespace
}  // namespace statcollect
