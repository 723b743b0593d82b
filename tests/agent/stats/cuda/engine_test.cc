// The books of the CUDA engine, over a device made of host code.
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <random>
#include <vector>

#include "tests/agent/stats/cuda/engine_fixture.h"

namespace statcollect::stats::cuda {
namespace {

TEST_F(CudaEngineTest, GivesEachTensorItsOwnResult) {
  Make(64);
  std::vector<TestTensor> tensors;
  for (const DType dtype : kAllDTypes) tensors.push_back(RandomNumbers(dtype, {5, 1000}, random_));
  tensors.push_back(RandomNumbers(DType::kF32, {2048 * 40 + 1}, random_));  // two levels of nodes
  tensors.push_back(RandomNumbers(DType::kF32, {0}, random_));
  std::vector<Answer> answers(tensors.size());
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    ASSERT_TRUE(Enqueue(tensors[i], i % 2 == 0 ? kStreamA : kStreamB, answers[i]).ok());
  }
  EXPECT_EQ(Poll(), tensors.size());
  device_->RunAll();
  EXPECT_EQ(Poll(), 0u);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    SCOPED_TRACE(i);
    EXPECT_EQ(answers[i].ended, 1);
    const Emulated expected = Emulate(tensors[i].View(), 16);
    EXPECT_EQ(answers[i].stats, expected.stats);
    EXPECT_EQ(answers[i].sketch, expected.sketch);
    const Computed cpu = Compute(tensors[i], 0, 8);
    answers[i].samples.resize(answers[i].sample_count);
    EXPECT_EQ(answers[i].samples, cpu.samples);
  }
}

// The host polls between any two steps of the kernels.
TEST_F(CudaEngineTest, WhatIsReadWhileKernelsRunIsComplete) {
  Make(64);
  const TestTensor tensor = RandomNumbers(DType::kF32, {5000}, random_);
  const Computed cpu = Compute(tensor, 0, 8);
  const Emulated expected = Emulate(tensor.View(), 16);
  for (int round = 0; round < 40; ++round) {
    Answer answer;
    answer.exponents.resize(kBins);
    ASSERT_TRUE(Enqueue(tensor, kStreamA, answer).ok());
    const auto poll = [&] {
      const bool before = answer.ended != 0;
      (void)Poll();
      if (before || answer.ended == 0) return;
      EXPECT_EQ(answer.stats, expected.stats);
      EXPECT_EQ(answer.sketch, expected.sketch);
      EXPECT_EQ(answer.samples, cpu.samples);
      EXPECT_EQ(answer.exponents, ExponentsOf(tensor, kLowest, kBins));
    };
    cuda_shim::Meanwhile(poll);
    device_->RunAll();
    cuda_shim::Meanwhile({});
    poll();
    EXPECT_EQ(answer.ended, 1);
  }
}

TEST_F(CudaEngineTest, ComputesAListWithOneLaunchADType) {
  Make(64);
  std::vector<TestTensor> tensors;
  for (int round = 0; round < 3; ++round) {
    // Small ones, empty ones, and ones of several units.
    for (const std::vector<std::int64_t>& shape :
         {std::vector<std::int64_t>{3}, {0}, {200, 1000}, {}, {70, 3}, {5000}}) {
      tensors.push_back(RandomNumbers(DType::kF32, shape, random_));
      tensors.push_back(RandomNumbers(DType::kBf16, shape, random_));
    }
  }
  for (int again = 0; again < 3; ++again) {  // the scratch and the lists are used again
    std::vector<Answer> answers(tensors.size());
    EXPECT_EQ(EnqueueList(tensors, kStreamA, answers), 0u);
    EXPECT_EQ(device_->launches, 2u * (static_cast<std::size_t>(again) + 1));
    EXPECT_EQ(Poll(), tensors.size());
    device_->RunAll();
    EXPECT_EQ(Poll(), 0u);
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      SCOPED_TRACE(i);
      EXPECT_EQ(answers[i].ended, 1);
      EXPECT_TRUE(answers[i].status.ok());
      Answer alone;
      ASSERT_TRUE(Enqueue(tensors[i], kStreamB, alone).ok());
      device_->RunAll();
      (void)Poll();
      EXPECT_EQ(answers[i].stats, alone.stats) << "bit for bit as alone";
      EXPECT_EQ(answers[i].sketch, alone.sketch);
      EXPECT_EQ(answers[i].sample_count, alone.sample_count);
      EXPECT_EQ(answers[i].samples, alone.samples);
    }
    device_->launches = 2u * (static_cast<std::size_t>(again) + 1);
  }
  EXPECT_FALSE(device_->scratch_shared);
}

TEST_F(CudaEngineTest, ListsThatAreTooLongTakeSeveralLaunches) {
  Make(2000);
  std::vector<TestTensor> tensors;
  for (int i = 0; i < 1200; ++i) tensors.push_back(RandomNumbers(DType::kF32, {7}, random_));
  std::vector<Answer> answers(tensors.size());
  EXPECT_EQ(EnqueueList(tensors, kStreamA, answers), 0u);
  EXPECT_EQ(device_->launches, 3u);
  device_->RunAll();
  EXPECT_EQ(Poll(), 0u);
  for (const Answer& answer : answers) EXPECT_EQ(answer.ended, 1);

  // Of several units each: the tickets of 576 nodes are what runs out first.
  std::vector<TestTensor> large;
  for (int i = 0; i < 400; ++i) large.push_back(RandomNumbers(DType::kF32, {9000}, random_));
  std::vector<Answer> more(large.size());
  EXPECT_EQ(EnqueueList(large, kStreamA, more), 0u);
  EXPECT_LE(device_->launches, 3u + 40);
  device_->RunAll();
  EXPECT_EQ(Poll(), 0u);
  Answer alone;
  ASSERT_TRUE(Enqueue(large.back(), kStreamA, alone).ok());
  device_->RunAll();
  (void)Poll();
  EXPECT_EQ(more.back().stats, alone.stats);
}

TEST_F(CudaEngineTest, ListsBeyondWhatMayBeInFlightGoOneByOneAndThenAreRefused) {
  Make(12 + CudaEngine::kListsMax * 2);
  std::vector<TestTensor> pair;
  for (int i = 0; i < 2; ++i) pair.push_back(RandomNumbers(DType::kF16, {9}, random_));
  std::vector<std::vector<Answer>> answers(CudaEngine::kListsMax + 6, std::vector<Answer>(2));
  for (auto& each : answers) EXPECT_EQ(EnqueueList(pair, kStreamA, each), 0u);
  EXPECT_EQ(device_->launches, CudaEngine::kListsMax + 2 * 6);
  std::vector<Answer> last(2);
  EXPECT_EQ(EnqueueList(pair, kStreamA, last), 2u) << "no record left";
  EXPECT_EQ(last[0].status.code(), Code::kResourceExhausted);
  device_->RunAll();
  EXPECT_EQ(Poll(), 0u);
  const std::size_t before = device_->launches;
  EXPECT_EQ(EnqueueList(pair, kStreamA, last), 0u);
  EXPECT_EQ(device_->launches, before + 1) << "lists are free again";
}

TEST_F(CudaEngineTest, AListSharesItsScratchWithNoOtherStream) {
  Make(256, 2);
  std::vector<TestTensor> tensors;
  for (int i = 0; i < 20; ++i)
    tensors.push_back(RandomNumbers(DType::kF32, {i % 2 == 0 ? 100 : 30'000}, random_));
  std::vector<Answer> a(20), b(20), c(20);
  EXPECT_EQ(EnqueueList(tensors, kStreamA, a), 0u);
  EXPECT_EQ(EnqueueList(tensors, kStreamB, b), 0u);
  EXPECT_EQ(EnqueueList(tensors, kStreamC, c), 20u) << "both lanes are in use";
  device_->RunAll();
  EXPECT_EQ(Poll(), 0u);
  EXPECT_FALSE(device_->scratch_shared);
  EXPECT_EQ(a[3].stats, b[3].stats);
}

TEST_F(CudaEngineTest, ListsAreRefusedWithTheReasonOfEach) {
  Make();
  std::vector<TestTensor> pair;
  for (int i = 0; i < 2; ++i) pair.push_back(RandomNumbers(DType::kF32, {9}, random_));
  std::vector<Answer> answers(2);
  device_->launch = Status(Code::kInternal, "the device is gone");
  EXPECT_EQ(EnqueueList(pair, kStreamA, answers), 2u);
  EXPECT_EQ(answers[0].status.code(), Code::kInternal);
  EXPECT_EQ(answers[1].status.code(), Code::kInternal);
  EXPECT_EQ(answers[0].ended, 0);
}

TEST_F(CudaEngineTest, HandsOverWhatIsThereAndKeepsTheRest) {
  Make();
  const TestTensor tensor = RandomNumbers(DType::kF32, {100}, random_);
  std::vector<Answer> answers(4);
  for (Answer& answer : answers) ASSERT_TRUE(Enqueue(tensor, kStreamA, answer).ok());
  ASSERT_TRUE(device_->RunOne(kStreamA));
  ASSERT_TRUE(device_->RunOne(kStreamA));
  EXPECT_EQ(Poll(), 2u);
  EXPECT_EQ(answers[1].ended, 1);
  EXPECT_EQ(answers[2].ended, 0);
}

TEST_F(CudaEngineTest, RefusesWhatItHasNoRecordFor) {
  Make(3);
  const TestTensor tensor = RandomNumbers(DType::kF32, {100}, random_);
  std::vector<Answer> answers(4);
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(Enqueue(tensor, kStreamA, answers[i]).ok());
  EXPECT_EQ(Enqueue(tensor, kStreamA, answers[3]).code(), Code::kResourceExhausted);
  EXPECT_EQ(device_->launches, 3u);
  for (int round = 0; round < 20; ++round) {
    device_->RunAll();
    Poll();
    Answer answer;
    ASSERT_TRUE(Enqueue(tensor, kStreamA, answer).ok()) << round;
    device_->RunAll();
    Poll();
    EXPECT_EQ(answer.ended, 1);
  }
}

TEST_F(CudaEngineTest, NeverSharesScratchBetweenStreams) {
  Make(16, 2);
  const TestTensor tensor = RandomNumbers(DType::kF32, {5000}, random_);
  std::vector<Answer> answers(5);
  ASSERT_TRUE(Enqueue(tensor, kStreamA, answers[0]).ok());
  ASSERT_TRUE(Enqueue(tensor, kStreamB, answers[1]).ok());
  EXPECT_EQ(Enqueue(tensor, kStreamC, answers[2]).code(), Code::kResourceExhausted)
      << "both lanes are in use";
  ASSERT_TRUE(device_->RunOne(kStreamA));
  EXPECT_TRUE(Enqueue(tensor, kStreamC, answers[2]).ok())
      << "a lane whose kernels have run is free, polled or not";
  EXPECT_EQ(Enqueue(tensor, kStreamA, answers[3]).code(), Code::kResourceExhausted);
  EXPECT_FALSE(device_->scratch_shared);
  device_->RunAll();
  EXPECT_EQ(Poll(), 0u);
  for (const int i : {0, 1, 2}) EXPECT_EQ(answers[i].ended, 1) << i;
  EXPECT_EQ(answers[3].ended, 0);
}

TEST_F(CudaEngineTest, EndsEveryFlightOnceWhenTheDeviceFails) {
  Make();
  const TestTensor tensor = RandomNumbers(DType::kF32, {100}, random_);
  std::vector<Answer> answers(3);
  for (Answer& answer : answers) ASSERT_TRUE(Enqueue(tensor, kStreamA, answer).ok());
  ASSERT_TRUE(device_->RunOne(kStreamA));
  device_->health = Status(Code::kInternal, "an illegal memory access");
  now_ += CudaEngine::kHealthInterval;
  EXPECT_EQ(Poll(), 0u);
  EXPECT_TRUE(answers[0].status.ok()) << "it was there";
  for (const int i : {0, 1, 2}) EXPECT_EQ(answers[i].ended, 1);
  EXPECT_EQ(answers[2].status.code(), Code::kInternal);
  Answer late;
  EXPECT_EQ(Enqueue(tensor, kStreamA, late).code(), Code::kInternal);
  EXPECT_EQ(Poll(), 0u);
  EXPECT_EQ(late.ended, 0);
}

TEST_F(CudaEngineTest, StopsWhenALaunchFailsAndTheDeviceHas) {
  Make();
  const TestTensor tensor = RandomNumbers(DType::kF32, {100}, random_);
  Answer before, failed;
  ASSERT_TRUE(Enqueue(tensor, kStreamA, before).ok());
  device_->launch = device_->health = Status(Code::kInternal, "an illegal memory access");
  EXPECT_EQ(Enqueue(tensor, kStreamA, failed).code(), Code::kInternal);
  EXPECT_EQ(Poll(), 0u);
  EXPECT_EQ(before.ended, 1);
  EXPECT_EQ(before.status.code(), Code::kInternal);
  EXPECT_EQ(failed.ended, 0);
}

TEST_F(CudaEngineTest, AbandonsWhatIsInFlight) {
  Make();
  const TestTensor tensor = RandomNumbers(DType::kF32, {100}, random_);
  Answer answer, late;
  ASSERT_TRUE(Enqueue(tensor, kStreamA, answer).ok());
  engine_->Abandon(true, End);
  EXPECT_EQ(answer.status.code(), Code::kAborted);
  EXPECT_EQ(Enqueue(tensor, kStreamA, late).code(), Code::kAborted);
  device_->RunAll();
  EXPECT_EQ(Poll(), 0u);
  EXPECT_EQ(answer.ended, 1);
}

TEST_F(CudaEngineTest, GivesItsMemoryBackUnlessADeviceMayStillWriteIt) {
  const TestTensor tensor = RandomNumbers(DType::kF32, {100}, random_);
  Make();
  Answer answer;
  ASSERT_TRUE(Enqueue(tensor, kStreamA, answer).ok());
  device_->RunAll();
  engine_.reset();
  EXPECT_TRUE(device_->allocations.empty());
  Make();
  ASSERT_TRUE(Enqueue(tensor, kStreamA, answer).ok());
  engine_.reset();
  EXPECT_FALSE(device_->allocations.empty());
  device_->RunAll();  // writes memory that is still there
}

TEST_F(CudaEngineTest, CountsExponentsWhereAskedForAsTheCpuDoes) {
  Make(64);
  std::vector<TestTensor> tensors;
  for (const DType dtype : kAllDTypes) {
    tensors.push_back(RandomBits(dtype, {3, 1000}, random_));
    TestTensor strided = RandomNumbers(dtype, {7, 90}, random_);
    std::swap(strided.shape[0], strided.shape[1]);
    strided.strides = {1, 90};
    tensors.push_back(strided);
    TestTensor misaligned = RandomBits(dtype, {40}, random_);
    misaligned.shape = {31};
    misaligned.origin = 3;
    tensors.push_back(misaligned);
  }
  tensors.push_back(RandomNumbers(DType::kF32, {0}, random_));
  tensors.push_back(RandomNumbers(DType::kF32, {2048 * 40 + 1}, random_));
  std::vector<Answer> answers(tensors.size());
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    SCOPED_TRACE(i);
    if (i % 4 != 3) answers[i].exponents.assign(kBins, 77);
    ASSERT_TRUE(Enqueue(tensors[i], i % 2 == 0 ? kStreamA : kStreamB, answers[i]).ok());
    if (i % 8 == 7) {
      device_->RunAll();
      (void)Poll();
    }
  }
  EXPECT_EQ(device_->exponent_launches, tensors.size() - tensors.size() / 4);
  device_->RunAll();
  EXPECT_EQ(Poll(), 0u);
  bool beyond = false;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    SCOPED_TRACE(i);
    EXPECT_EQ(answers[i].ended, 1);
    EXPECT_EQ(answers[i].stats, Emulate(tensors[i].View(), 16).stats);
    if (answers[i].exponents.empty()) continue;
    EXPECT_EQ(answers[i].exponents, ExponentsOf(tensors[i], kLowest, kBins));
    beyond = beyond || (answers[i].exponents.front() > 0 && answers[i].exponents.back() > 0);
  }
  EXPECT_TRUE(beyond);
}

TEST_F(CudaEngineTest, AResultIsThereOnlyOnceItsExponentsAre) {
  Make();
  const TestTensor tensor = RandomNumbers(DType::kF32, {5000}, random_);
  Answer answer, next;
  answer.exponents.resize(kBins);
  ASSERT_TRUE(Enqueue(tensor, kStreamA, answer).ok());
  ASSERT_TRUE(Enqueue(tensor, kStreamA, next).ok());
  ASSERT_TRUE(device_->RunOne(kStreamA));  // the statistics
  EXPECT_EQ(Poll(), 2u);
  EXPECT_EQ(answer.ended, 0);
  ASSERT_TRUE(device_->RunOne(kStreamA));  // the exponents, and the next one's statistics
  EXPECT_EQ(Poll(), 0u);
  EXPECT_EQ(answer.exponents, ExponentsOf(tensor, kLowest, kBins));
  EXPECT_EQ(device_->exponent_launches, 1u) << "nobody asked for the other's";
}

TEST_F(CudaEngineTest, AListsExponentsAreCountedTensorByTensor) {
  Make(64);
  std::vector<TestTensor> tensors;
  for (int i = 0; i < 9; ++i)
    tensors.push_back(RandomNumbers(i % 2 == 0 ? DType::kF32 : DType::kBf16, {100 * i}, random_));
  for (int again = 0; again < 3; ++again) {
    std::vector<Answer> answers(tensors.size());
    for (std::size_t i = 0; i < answers.size(); i += 3) answers[i].exponents.resize(kBins);
    EXPECT_EQ(EnqueueList(tensors, kStreamA, answers), 0u);
    device_->RunAll();
    EXPECT_EQ(Poll(), 0u);
    EXPECT_EQ(device_->launches, 2u * (static_cast<std::size_t>(again) + 1)) << "still one a dtype";
    for (std::size_t i = 0; i < answers.size(); ++i) {
      EXPECT_EQ(answers[i].ended, 1);
      if (i % 3 != 0) continue;
      EXPECT_EQ(answers[i].exponents, ExponentsOf(tensors[i], kLowest, kBins));
    }
  }
  EXPECT_EQ(device_->exponent_launches, 9u);
}

TEST(CudaEngine, SaysWhyADeviceCannotBeUsed) {
  CudaEngine none({}, nullptr);
  EXPECT_EQ(none.Open(0).code(), Code::kUnimplemented);
  EXPECT_NE(none.Open(0).message().find("STATCOLLECT_CUDA"), std::string::npos);

  const auto device = std::make_shared<FakeDevice>();
  device->open = Status(Code::kUnimplemented, "no driver");
  CudaEngine refused({}, std::make_unique<FakeCudaApi>(device));
  EXPECT_EQ(refused.Open(0).message(), "no driver");
  device->open = Status::Ok();
  EXPECT_EQ(refused.Open(0).message(), "no driver") << "remembered: asking is slow";
  EXPECT_EQ(refused.Open(7).code(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace statcollect::stats::cuda
