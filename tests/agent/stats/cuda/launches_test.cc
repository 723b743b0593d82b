// Launches of the CUDA engine that fail, wait, or are more than there was room for.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "tests/agent/stats/cuda/engine_fixture.h"

namespace statcollect::stats::cuda {
namespace {

TEST_F(CudaEngineTest, ALaunchThatFailsLosesItsTensorAndNothingElse) {
  Make(3);
  const TestTensor tensor = RandomNumbers(DType::kF32, {100}, random_);
  Answer before;
  ASSERT_TRUE(Enqueue(tensor, kStreamA, before).ok());
  device_->launch = Status(Code::kInternal, "another thread has begun to capture");
  for (int i = 0; i < 20; ++i) {
    Answer failed;
    EXPECT_EQ(Enqueue(tensor, kStreamA, failed).code(), Code::kInternal)
        << "and gives its record back";
    EXPECT_EQ(failed.ended, 0);
  }
  EXPECT_EQ(Poll(), 1u);
  EXPECT_EQ(before.ended, 0);
  device_->launch = Status::Ok();
  std::vector<Answer> after(2);
  for (Answer& answer : after) ASSERT_TRUE(Enqueue(tensor, kStreamA, answer).ok());
  device_->RunAll();
  EXPECT_EQ(Poll(), 0u);
  EXPECT_TRUE(before.status.ok());
  for (const Answer& answer : after) EXPECT_EQ(answer.stats, before.stats);
}

TEST_F(CudaEngineTest, AListThatFailsLosesItsTensorsAndNothingElse) {
  Make(8);
  std::vector<TestTensor> tensors;
  for (int i = 0; i < 6; ++i) tensors.push_back(RandomNumbers(DType::kF32, {100 + i}, random_));
  for (const bool copied : {false, true}) {
    (copied ? device_->launch_only : device_->launch) =
        Status(Code::kInternal, "it does not stick");
    for (int i = 0; i < 3 * static_cast<int>(CudaEngine::kListsMax); ++i) {
      std::vector<Answer> answers(tensors.size());
      ASSERT_EQ(EnqueueList(tensors, kStreamA, answers), tensors.size());
      for (const Answer& answer : answers) EXPECT_EQ(answer.status.code(), Code::kInternal);
    }
    device_->launch = device_->launch_only = Status::Ok();
    // Another stream may not take the place of tasks whose copy is still on its way in this one.
    std::vector<Answer> a(tensors.size());
    ASSERT_EQ(EnqueueList(tensors, kStreamB, a), 0u);
    while (device_->RunOne(kStreamA)) {
    }
    device_->RunAll();
    EXPECT_EQ(Poll(), 0u);
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      EXPECT_EQ(a[i].ended, 1);
      EXPECT_EQ(a[i].stats, Emulate(tensors[i].View(), 16).stats) << i;
    }
    // Enough launches of lists for all places to be used again.
    std::vector<Answer> again(tensors.size());
    ASSERT_EQ(EnqueueList(tensors, kStreamA, again), 0u);
    device_->RunAll();
    EXPECT_EQ(Poll(), 0u);
    EXPECT_EQ(again[5].stats, a[5].stats);
  }
}

TEST_F(CudaEngineTest, ExponentsThatFailLoseTheirTensorOnceItsRecordIsFree) {
  Make(2);
  const TestTensor tensor = RandomNumbers(DType::kF32, {100}, random_);
  for (int i = 0; i < 6; ++i) {
    Answer answer;
    answer.exponents.resize(kBins);
    device_->exponents = Status(Code::kInternal, "it does not stick");
    ASSERT_TRUE(Enqueue(tensor, kStreamA, answer).ok()) << "its statistics are on their way";
    EXPECT_EQ(Poll(), 1u);
    device_->RunAll();
    EXPECT_EQ(Poll(), 0u);
    EXPECT_EQ(answer.ended, 1);
    EXPECT_EQ(answer.status.code(), Code::kInternal);
  }
  device_->exponents = Status::Ok();
  Answer answer;
  answer.exponents.resize(kBins);
  ASSERT_TRUE(Enqueue(tensor, kStreamA, answer).ok());
  device_->RunAll();
  EXPECT_EQ(Poll(), 0u);
  EXPECT_TRUE(answer.status.ok());
}

TEST_F(CudaEngineTest, TheEndOfAStepHasRoomForManyTensors) {
  engine_ = std::make_unique<CudaEngine>(EngineOptions{}, std::make_unique<FakeCudaApi>(device_));
  ASSERT_TRUE(engine_->Open(0).ok());
  // 1,680 parameters with gradient and two Adam states, while a forward pass is still in flight.
  const std::vector<TestTensor> tensors(6720, RandomNumbers(DType::kF32, {5}, random_));
  std::vector<Answer> forward(3000), list(tensors.size());
  for (Answer& answer : forward) ASSERT_TRUE(Enqueue(tensors[0], kStreamA, answer).ok());
  EXPECT_EQ(EnqueueList(tensors, kStreamA, list), 0u);
  EXPECT_EQ(Poll(), forward.size() + list.size());
  device_->RunAll();
  EXPECT_EQ(Poll(), 0u);
  for (const Answer& answer : forward) EXPECT_EQ(answer.ended, 1);
  for (const Answer& answer : list) EXPECT_EQ(answer.stats, forward[0].stats);
}

TEST_F(CudaEngineTest, RecordsGrowOnDemandUpToABound) {
  Make(4, 2, 20);
  const TestTensor tensor = RandomNumbers(DType::kF32, {5000}, random_);
  for (int round = 0; round < 3; ++round) {
    std::vector<Answer> answers(21);
    for (int i = 0; i < 20; ++i) {
      answers[static_cast<std::size_t>(i)].exponents.resize(kBins);
      ASSERT_TRUE(Enqueue(tensor, kStreamA, answers[static_cast<std::size_t>(i)]).ok()) << i;
      if (i == 2) (void)device_->RunOne(kStreamA);
    }
    EXPECT_EQ(Enqueue(tensor, kStreamA, answers[20]).code(), Code::kResourceExhausted);
    device_->RunAll();
    EXPECT_EQ(Poll(), 0u);
    for (int i = 0; i < 20; ++i) {
      const Answer& answer = answers[static_cast<std::size_t>(i)];
      EXPECT_EQ(answer.ended, 1);
      EXPECT_EQ(answer.stats, Emulate(tensor.View(), 16).stats);
      EXPECT_EQ(answer.samples, Compute(tensor, 0, 8).samples);
      EXPECT_EQ(answer.exponents, ExponentsOf(tensor, kLowest, kBins));
    }
  }
  engine_.reset();
  EXPECT_TRUE(device_->allocations.empty()) << "also what was added";
}

TEST_F(CudaEngineTest, AFullQueueOfAStreamHoldsUpNobodyElse) {
  Make(16, 4);
  const TestTensor tensor = RandomNumbers(DType::kF32, {5000}, random_);
  Answer stuck, next, other, early;
  ASSERT_TRUE(Enqueue(tensor, kStreamB, early).ok());
  device_->Block(kStreamA);
  std::thread blocked([&] { EXPECT_TRUE(Enqueue(tensor, kStreamA, stuck).ok()); });
  device_->AwaitBlocked(1);
  std::thread behind(
      [&] { EXPECT_TRUE(Enqueue(tensor, kStreamA, next).ok()); });  // the same stream's
  // The batcher's thread, and others with other streams, go on.
  ASSERT_TRUE(Enqueue(tensor, kStreamB, other).ok());
  device_->RunAll();
  EXPECT_EQ(Poll(), 0u);
  EXPECT_EQ(early.ended, 1);
  EXPECT_EQ(other.ended, 1);
  device_->Unblock();
  blocked.join();
  behind.join();
  EXPECT_FALSE(device_->scratch_shared);
  device_->RunAll();
  EXPECT_EQ(Poll(), 0u);
  EXPECT_EQ(stuck.ended, 1);
  EXPECT_EQ(next.ended, 1);
  EXPECT_EQ(stuck.stats, other.stats);
}

TEST_F(CudaEngineTest, WhatIsBeingLaunchedWhenTheEngineStopsIsRefused) {
  Make(16, 4);
  const TestTensor tensor = RandomNumbers(DType::kF32, {5000}, random_);
  Answer stuck;
  device_->Block(kStreamA);
  std::thread blocked([&] { EXPECT_EQ(Enqueue(tensor, kStreamA, stuck).code(), Code::kAborted); });
  device_->AwaitBlocked(1);
  engine_->Abandon(true, End);
  device_->Unblock();
  blocked.join();
  device_->RunAll();
  EXPECT_EQ(Poll(), 0u);
  EXPECT_EQ(stuck.ended, 0) << "it was refused";
}

TEST_F(CudaEngineTest, ManyThreadsWithManyStreams) {
  Make(8, 4, 64);
  const TestTensor tensor = RandomNumbers(DType::kF32, {5000}, random_);
  const TensorStats expected = Emulate(tensor.View(), 16).stats;
  constexpr std::size_t kEach = 200;
  std::vector<std::vector<Answer>> answers(6, std::vector<Answer>(kEach));
  std::atomic<int> working{6};
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < answers.size(); ++t) {
    threads.emplace_back([&, t] {
      for (Answer& answer : answers[t]) {  // two threads a stream
        while (!Enqueue(tensor, reinterpret_cast<void*>(0x100 * (1 + t / 2)), answer).ok())
          std::this_thread::yield();
      }
      --working;
    });
  }
  while (working > 0) {
    device_->RunAll();
    (void)Poll();
  }
  for (std::thread& thread : threads) thread.join();
  device_->RunAll();
  EXPECT_EQ(Poll(), 0u);
  EXPECT_FALSE(device_->scratch_shared);
  for (const auto& of_thread : answers) {
    for (const Answer& answer : of_thread) {
      EXPECT_EQ(answer.ended, 1);
      EXPECT_EQ(answer.stats, expected);
    }
  }
}

}  // namespace
}  // namespace statcollect::stats::cuda
