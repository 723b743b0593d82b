#include "agent/staging/ring_plan.h"

#include <cstdint>
#include <map>
#include <vector>

#include <gtest/gtest.h>

namespace statcollect {
namespace {

using Sizes = std::vector<std::uint64_t>;  // of a step's tensors, by activation
using Granted = std::map<std::uint32_t, std::uint64_t>;

Granted Step(RingPlan& plan, std::uint64_t step, const Sizes& sizes) {
  Granted granted;
  for (std::uint32_t i = 0; i < sizes.size(); ++i) {
    if (const auto bytes = plan.Grant(i, step, sizes[i])) granted[i] = *bytes;
  }
  return granted;
}

TEST(RingPlan, AStepThatFitsIsKeptWhole) {
  RingPlan plan(64'000, 100);
  for (std::uint64_t step = 0; step < 3; ++step)
    EXPECT_EQ(Step(plan, step, {30'000, 100, 0}), (Granted{{0, 30'000}, {1, 100}, {2, 0}}));
  EXPECT_EQ(plan.kept()->whole, 3u);
  EXPECT_EQ(plan.kept()->bytes, 30'100u);
}

TEST(RingPlan, TheFirstStepTakesWhatComesAndTheOthersTheSmallestFirst) {
  RingPlan plan(64'000, 100);
  const Sizes sizes = {50'000, 20'000, 10'000, 500'000};
  EXPECT_EQ(Step(plan, 7, sizes), (Granted{{0, 50'000}, {2, 10'000}}));
  EXPECT_FALSE(plan.kept());
  // Half of 64,000 is for whole tensors, the rest for the first bytes of others.
  const Granted planned = {{0, 16'960}, {1, 20'000}, {2, 10'000}, {3, 16'960}};
  EXPECT_EQ(Step(plan, 8, sizes), planned);
  EXPECT_EQ(Step(plan, 9, sizes), planned) << "the same in each step";
  EXPECT_EQ(plan.kept()->tensors, 4u);
  EXPECT_EQ(plan.kept()->whole, 2u);
  EXPECT_EQ(plan.kept()->in_part, 2u);
  EXPECT_EQ(plan.kept()->of_bytes, 580'000u);
  EXPECT_TRUE(plan.crowded());
}

TEST(RingPlan, NeverGrantsMoreThanTheShare) {
  for (std::uint64_t seed = 1; seed < 200; ++seed) {
    std::uint64_t state = seed;
    const auto random = [&](std::uint64_t below) {
      state = state * 6'364'136'223'846'793'005u + 1'442'695'040'888'963'407u;
      return (state >> 33) % below;
    };
    RingPlan plan(100'000, 20);
    for (std::uint64_t step = 0; step < 6; ++step) {
      std::uint64_t room = 0, tensors = 0;
      for (std::uint32_t n = 0; n < 30; ++n) {
        if (random(4) == 0) continue;
        const std::uint64_t bytes = random(std::uint64_t{1} << random(18));
        const auto granted = plan.Grant(n, step, bytes);
        if (!granted) continue;
        ASSERT_LE(*granted, bytes);
        room += RingRoom(*granted);
        ++tensors;
      }
      ASSERT_LE(room, 100'000u) << seed;
      ASSERT_LE(tensors, 20u) << seed;
    }
  }
}

TEST(RingPlan, ANewTensorTakesWhatIsLeftUntilItIsPlanned) {
  RingPlan plan(64'000, 100);
  Step(plan, 0, {30'000});
  EXPECT_EQ(Step(plan, 1, {30'000, 40'000, 20'000}), (Granted{{0, 30'000}, {2, 20'000}}));
  EXPECT_EQ(Step(plan, 2, {30'000, 40'000, 20'000}),
            (Granted{{0, 21'952}, {1, 22'016}, {2, 20'000}}));
}

TEST(RingPlan, ATensorThatGrowsKeepsItsFirstBytesUntilItIsPlanned) {
  RingPlan plan(64'000, 100);
  Step(plan, 0, {10'000});
  Step(plan, 1, {10'000});
  EXPECT_EQ(Step(plan, 2, {30'000}), (Granted{{0, 10'000}}));
  EXPECT_EQ(Step(plan, 3, {30'000}), (Granted{{0, 30'000}}));
  EXPECT_EQ(Step(plan, 4, {10'000}), (Granted{{0, 10'000}}));
}

TEST(RingPlan, WhatWouldBeAFewBytesIsLeftOut) {
  RingPlan plan(16'384, 100);
  const Sizes many(50, 8'192);
  Step(plan, 0, many);
  EXPECT_EQ(Step(plan, 1, many), (Granted{{0, 8'192}, {1, 4'096}, {2, 4'096}}));
}

}  // namespace
}  // namespace statcollect
