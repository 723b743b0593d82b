#include "agent/staging/staging_ring.h"

#include <gtest/gtest.h>

#include <atomic>
#include <set>
#include <thread>
#include <vector>

namespace statcollect {
namespace {

TEST(StagingRing, HandsSlotsOverInTheOrderOfReservation) {
  StagingRing ring(4, 16, 2);
  Slot* first = ring.TryReserve();
  Slot* second = ring.TryReserve();
  ASSERT_NE(first, nullptr);
  ASSERT_NE(second, nullptr);
  first->activation = 1;
  second->activation = 2;
  EXPECT_TRUE(ring.Commit(second));
  EXPECT_EQ(ring.Front(), nullptr) << "the first is not ready yet";
  EXPECT_TRUE(ring.Commit(first));
  ASSERT_NE(ring.Front(), nullptr);
  EXPECT_EQ(ring.Front()->activation, 1u);
  ring.Release();
  EXPECT_EQ(ring.Front()->activation, 2u);
}

TEST(StagingRing, PassesByWhatWasGivenUp) {
  StagingRing ring(3, 0, 0);
  Slot* first = ring.TryReserve();
  Slot* second = ring.TryReserve();
  Slot* third = ring.TryReserve();
  ring.GiveUp(second);
  EXPECT_EQ(ring.Front(), nullptr) << "the first is still to come";
  ring.GiveUp(first);
  third->activation = 3;
  EXPECT_TRUE(ring.Commit(third));
  ASSERT_NE(ring.Front(), nullptr);
  EXPECT_EQ(ring.Front()->activation, 3u);
  EXPECT_EQ(ring.head(), 2u);
  ring.Release();
  ring.GiveUp(ring.TryReserve());
  EXPECT_EQ(ring.Front(), nullptr);
  EXPECT_EQ(ring.head(), ring.tail()) << "empty";
}

TEST(StagingRing, RefusesWhenFullAndTakesAgainAfterARelease) {
  StagingRing ring(2, 0, 0);
  Slot* a = ring.TryReserve();
  Slot* b = ring.TryReserve();
  EXPECT_EQ(ring.TryReserve(), nullptr);
  EXPECT_TRUE(ring.Commit(a));
  EXPECT_TRUE(ring.Commit(b));
  ring.Release();
  EXPECT_NE(ring.TryReserve(), nullptr);
  EXPECT_EQ(ring.TryReserve(), nullptr);
}

TEST(StagingRing, GivesEachSlotItsOwnSketchAndSamples) {
  StagingRing ring(3, 16, 4);
  std::set<double*> starts;
  for (int i = 0; i < 3; ++i) {
    Slot* slot = ring.TryReserve();
    EXPECT_EQ(slot->sketch.size(), 16u);
    EXPECT_EQ(slot->samples.size(), 4u);
    starts.insert(slot->sketch.data());
    starts.insert(slot->samples.data());
  }
  EXPECT_EQ(starts.size(), 6u);
}

TEST(StagingRing, AbandonCountsReadySlotsAndFailsTheReservedOnes) {
  StagingRing ring(4, 0, 0);
  Slot* ready = ring.TryReserve();
  Slot* reserved = ring.TryReserve();
  EXPECT_TRUE(ring.Commit(ready));
  EXPECT_EQ(ring.Abandon(), 1u);
  EXPECT_FALSE(ring.Commit(reserved));
  EXPECT_EQ(ring.TryReserve(), nullptr);
}

TEST(StagingRing, LosesNothingBetweenManyWritersAndOneReader) {
  constexpr std::uint64_t kPerWriter = 20000;
  constexpr std::uint32_t kWriters = 3;
  StagingRing ring(64, 0, 0);
  std::atomic<std::uint64_t> full{0};
  std::vector<std::thread> writers;
  for (std::uint32_t w = 0; w < kWriters; ++w) {
    writers.emplace_back([&, w] {
      for (std::uint64_t i = 0; i < kPerWriter; ++i) {
        Slot* slot = ring.TryReserve();
        if (slot == nullptr) {
          ++full;
          continue;
        }
        slot->activation = w;
        slot->step = i;
        ASSERT_TRUE(ring.Commit(slot));
      }
    });
  }
  std::vector<std::uint64_t> next(kWriters, 0);
  std::uint64_t read = 0;
  while (read + full < kPerWriter * kWriters) {
    const Slot* slot = ring.Front();
    if (slot == nullptr) {
      std::this_thread::yield();
      continue;
    }
    ASSERT_GE(slot->step, next[slot->activation]) << "a writer's own order is kept";
    next[slot->activation] = slot->step + 1;
    ring.Release();
    ++read;
  }
  for (std::thread& t : writers) t.join();
  EXPECT_EQ(ring.Front(), nullptr);
  EXPECT_EQ(read + full, kPerWriter * kWriters);
}

}  // namespace
}  // namespace statcollect
