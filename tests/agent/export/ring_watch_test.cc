#include "agent/export/ring_watch.h"

#include <array>
#include <cmath>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/fake_clock.h"

namespace statcollect {
namespace {

using ::testing::HasSubstr;
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

class RingWatchTest : public ::testing::Test {
 protected:
  RingWatchTest() {
    const RingSpec spec = *RingSpec::Parse("3,1MiB");
    ring_ = std::make_unique<TensorRing>(spec, *RingMemory::Make("", "hello", spec));
    recorder_ = std::make_unique<Recorder>(Recorder::Options{.slots = 16, .ring = ring_.get()},
                                           &clock_, &ledger_, &waker_);
    watch_ = std::make_unique<RingWatch>(
        recorder_.get(), &clock_, [this](const std::string& line) { said_.push_back(line); },
        [this](const std::string& line) { kept_said_.push_back(line); });
    watch_->Define({.id = 0, .key = {.name = "fc1", .kind = Kind::kOutput}});
    watch_->Define({.id = 1, .key = {.name = "fc1.weight", .kind = Kind::kWeight}});
  }
  void Keep(std::uint32_t activation, std::int64_t bytes) {
    const std::int64_t shape[] = {bytes};
    CapturedTensor* const kept =
        ring_->Reserve({.activation = activation, .step = step_, .ring = true}, DType::kU8, shape);
    if (kept != nullptr) kept->keeper()->Commit(kept);
  }
  // A step with an output, a loss and an update.
  std::optional<EventRecord> Step(double loss, TensorStats output = {.numel = 8},
                                  double length = 0.01) {
    Keep(0, 8);
    ObservedTensor tensor{.activation = 0, .step = step_, .stats = output};
    watch_->AddTensor(tensor);
    position_ += length / 4;  // in each of 16 directions
    std::vector<double> sketch(16, position_);
    const TensorStats weight{.numel = 8, .has_finite = true, .l2 = 10, .hash = step_ + 1};
    watch_->AddTensor({.activation = 1, .step = step_, .stats = weight, .sketch = sketch});
    watch_->AddScalar({.name = "loss", .step = step_, .value = loss});
    watch_->AddScalar({.name = "lr", .step = step_, .value = kNan});
    return watch_->EndStep(step_++);
  }
  void Quiet(int steps) {
    for (int n = 0; n < steps; ++n) ASSERT_FALSE(Step(2 + 0.01 * (n % 3))) << "step " << step_;
  }

  testing::FakeClock clock_;
  Ledger ledger_;
  Waker waker_;
  std::unique_ptr<TensorRing> ring_;
  std::unique_ptr<Recorder> recorder_;
  std::unique_ptr<RingWatch> watch_;
  std::vector<std::string> said_, kept_said_;
  std::uint64_t step_ = 0;
  double position_ = 0;
};

TEST_F(RingWatchTest, ALossThatJumpsWritesTheStepsBeforeOnce) {
  Quiet(20);
  const auto event = Step(9);
  ASSERT_TRUE(event);
  EXPECT_EQ(event->kind, "ring_written");
  EXPECT_EQ(event->step, 20u);
  EXPECT_EQ(event->fields.at("cause"), "loss_spike");
  EXPECT_EQ(event->fields.at("tensors"), "4") << "steps 18 to 20, and 17, which was still there";
  EXPECT_THAT(event->text, HasSubstr("step 20: loss is 9, 4.478 times its running median; "));
  ASSERT_EQ(said_.size(), 1u);
  EXPECT_THAT(said_[0], HasSubstr("of the ring written as captures: 4 tensors"));
  EXPECT_TRUE(recorder_->captures().HasReady());
  EXPECT_FALSE(Step(9)) << "it is still the same spike";
  EXPECT_FALSE(Step(2));
}

TEST_F(RingWatchTest, NanInfinitiesAndALossThatIsNoNumberAreCauses) {
  Quiet(2);
  EXPECT_EQ(Step(2, {.numel = 8, .pos_inf = 1})->fields.at("cause"), "overflow");
  EXPECT_EQ(Step(2, {.numel = 8, .nan = 1})->fields.at("cause"), "nan");
  EXPECT_FALSE(Step(2, {.numel = 8, .nan = 1}));
  EXPECT_EQ(Step(kNan, {.numel = 8, .nan = 1})->fields.at("cause"), "loss_not_finite");
  EXPECT_FALSE(Step(2));
  EXPECT_EQ(Step(kNan, {.numel = 8, .nan = 1})->fields.at("cause"), "loss_not_finite,nan");
}

TEST_F(RingWatchTest, AMaskIsNoOverflow) {
  EXPECT_FALSE(Step(2, {.numel = 8, .neg_inf = 4}));
  EXPECT_FALSE(Step(2, {.numel = 8, .neg_inf = 4}));
  EXPECT_TRUE(Step(2, {.numel = 8, .pos_inf = 1, .neg_inf = 4}));
}

TEST_F(RingWatchTest, AnUpdateOfTwiceItsMedianIsACause) {
  Quiet(20);
  const auto event = Step(2, {.numel = 8}, 0.03);
  ASSERT_TRUE(event);
  EXPECT_EQ(event->fields.at("cause"), "update_norm");
  EXPECT_THAT(event->text, HasSubstr("the update moved the weights by about 0.03, 3 times"));
}

TEST_F(RingWatchTest, WritesAreCountedAndTheLastOneSaysSo) {
  int written = 0;
  for (int n = 0; n < 40; ++n) {
    const auto event = Step(n % 2 == 0 ? kNan : 2);
    if (event && ++written == RingWatch::kWritesMax) {
      EXPECT_THAT(event->text, HasSubstr("this was the last time in this launch"));
    }
  }
  EXPECT_EQ(written, RingWatch::kWritesMax);
}

TEST_F(RingWatchTest, WhatIsNotKeptIsSaidOnceAndWithTheValues) {
  for (int n = 0; n < 5; ++n) {
    Keep(1, 2 << 20);
    Quiet(1);
  }
  ASSERT_EQ(kept_said_.size(), 1u);
  EXPECT_THAT(kept_said_[0], HasSubstr("of each step: 1 of 2 tensors whole and the first rows of "
                                       "1, 174664 bytes of 2 MiB; name fewer"));
  Keep(1, 2 << 20);
  const auto event = Step(kNan);
  EXPECT_THAT(event->text,
              HasSubstr("; of each step 1 of 2 tensors whole and the first rows of 1"));
  EXPECT_EQ(event->fields.at("missing"), "0");
}

TEST_F(RingWatchTest, ARingThatKeepsEverythingIsSilent) {
  Quiet(5);
  EXPECT_TRUE(kept_said_.empty());
}

TEST_F(RingWatchTest, WhatHadNoRoomIsSaid) {
  const std::int64_t shape[] = {8};
  ASSERT_NE(ring_->Reserve({.activation = 2, .step = 0, .ring = true}, DType::kU8, shape), nullptr);
  for (int n = 0; n < 7; ++n) {  // behind one that is still being copied
    Keep(1, 170'000);
    Quiet(1);
  }
  const auto event = Step(kNan);
  EXPECT_THAT(event->text, HasSubstr(" had no room"));
  EXPECT_NE(event->fields.at("missing"), "0");
}

}  // namespace
}  // namespace statcollect
