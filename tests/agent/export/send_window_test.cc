#include "agent/export/send_window.h"

#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace statcollect {
namespace {

EncodedBatch Batch(std::uint32_t records, std::size_t bytes = 100) {
  return {.records = records, .bytes = std::string(bytes, 'x')};
}

TEST(SendWindow, NumbersRecordsWithoutGapsFromOne) {
  SendWindow window;
  window.Add(Batch(3, 100));
  window.Add(Batch(2, 100));
  const auto first = window.TakeNext();
  const auto second = window.TakeNext();
  EXPECT_EQ(first->first_seq, 1u);
  EXPECT_EQ(first->last_seq(), 3u);
  EXPECT_EQ(second->first_seq, 4u);
  EXPECT_EQ(window.TakeNext(), nullptr);
}

TEST(SendWindow, CountsEachNumberOnceHoweverOftenItIsAcknowledged) {
  SendWindow window;
  window.Add(Batch(3, 100));
  window.Add(Batch(2, 100));
  EXPECT_EQ(*window.Ack(2), 2u) << "in the middle of a batch";
  EXPECT_FALSE(window.empty());
  EXPECT_EQ(window.first_unacked_seq(), 1u) << "the batch is kept whole";
  EXPECT_EQ(*window.Ack(5), 3u);
  EXPECT_EQ(*window.Ack(5), 0u);
  EXPECT_EQ(*window.Ack(1), 0u);
  EXPECT_TRUE(window.empty());
}

TEST(SendWindow, IsFullAtItsBatchLimitAndAtItsByteLimit) {
  SendWindow window;
  window.SetLimits(
      {.message_bytes_max = 4u << 20, .window_batches_max = 2, .window_bytes_max = 16u << 20});
  window.Add(Batch(1, 100));
  EXPECT_TRUE(window.HasRoom());
  window.Add(Batch(1, 100));
  EXPECT_FALSE(window.HasRoom());
  (void)window.Ack(1);
  EXPECT_TRUE(window.HasRoom());

  SendWindow narrow;
  narrow.SetLimits({.message_bytes_max = 1000, .window_batches_max = 8, .window_bytes_max = 1500});
  EXPECT_LE(narrow.BatchBytesMax(), 1000u);
  narrow.Add(Batch(1, 900));
  EXPECT_FALSE(narrow.HasRoom());
}

TEST(SendWindow, AfterAReconnectSendsOnlyWhatTheCollectorLacks) {
  SendWindow window;
  window.Add(Batch(3, 100));
  window.Add(Batch(2, 100));
  window.Add(Batch(1, 100));
  while (window.TakeNext() != nullptr) {
  }
  const auto resumed =
      window.Resume(3);  // the first is durable although its acknowledgement was lost
  ASSERT_TRUE(resumed.ok());
  EXPECT_EQ(resumed->newly_acked, 3u);
  EXPECT_EQ(resumed->lost, 0u);
  EXPECT_EQ(window.TakeNext()->first_seq, 4u);
  EXPECT_EQ(window.TakeNext()->first_seq, 6u);
  EXPECT_EQ(window.TakeNext(), nullptr);
}

TEST(SendWindow, SendsAgainWhatTheCollectorAcknowledgedAndLost) {
  SendWindow window;
  window.Add(Batch(3, 100));
  window.Add(Batch(2, 100));
  while (window.TakeNext() != nullptr) {
  }
  EXPECT_EQ(*window.Ack(5), 5u);
  const auto resumed = window.Resume(3);
  ASSERT_TRUE(resumed.ok());
  EXPECT_EQ(resumed->lost, 2u);
  EXPECT_EQ(resumed->newly_acked, 0u);
  EXPECT_EQ(window.TakeNext()->first_seq, 4u);
  EXPECT_EQ(resumed->gone, 0u);
  EXPECT_EQ(*window.Ack(5), 2u) << "no longer counted as acknowledged";
  EXPECT_EQ(*window.Ack(5), 0u);
}

TEST(SendWindow, NumbersWhatItHoldsAnewWhenTheCollectorLostMoreThanIsKept) {
  constexpr std::size_t kBytes = SendWindow::kRecentBytesMax / 4;
  SendWindow window;
  for (std::uint32_t i = 1; i <= 10; ++i) {
    EncodedBatch batch = Batch(2, kBytes);
    batch.before = {i, 0};
    window.Add(std::move(batch));
    (void)window.TakeNext();
    EXPECT_EQ(*window.Ack(2 * i), 2u);
  }
  window.Add(Batch(1));  // 21, never acknowledged
  const auto resumed = window.Resume(4);
  ASSERT_TRUE(resumed.ok()) << resumed.status().message();
  EXPECT_EQ(resumed->lost, 16u);
  EXPECT_EQ(resumed->gone, 8u) << "5..12; four batches, 13..20, are held";
  EXPECT_EQ(window.DefinedBefore({99, 99}).activations, 7u);
  window.Renumber({Batch(1)});
  std::vector<std::pair<std::uint64_t, std::uint64_t>> sent;
  while (const auto batch = window.TakeNext())
    sent.emplace_back(batch->first_seq, batch->last_seq());
  using Range = std::pair<std::uint64_t, std::uint64_t>;
  EXPECT_EQ(sent, (std::vector<Range>{{5, 5}, {6, 7}, {8, 9}, {10, 11}, {12, 13}, {14, 14}}));
  EXPECT_EQ(*window.Ack(14), 10u);
  EXPECT_TRUE(window.empty());
  window.Add(Batch(1));
  EXPECT_EQ(window.TakeNext()->first_seq, 15u);
}

constexpr StoreIdentity kStore{.id = {1}, .epoch = 1}, kOther{.id = {2}, .epoch = 2};

// Ten batches of two records, of which four fill the ring.
SendWindow Acknowledged() {
  SendWindow window;
  for (std::uint32_t i = 1; i <= 10; ++i) {
    window.Add(Batch(2, SendWindow::kRecentBytesMax / 4));
    (void)window.TakeNext();
    (void)window.Ack(2 * i);
  }
  return window;
}

TEST(SendWindow, ANumberIsNotUsedAgainWhenAStoreLostMoreThanIsKept) {
  SendWindow window = Acknowledged();
  const auto lost = window.Resume(4, kStore);
  ASSERT_TRUE(lost.ok());
  EXPECT_EQ(lost->gone, 8u) << "5..12; four batches, 13..20, are held";
  EXPECT_EQ(lost->missing, 8u);
  window.Bridge({Batch(1)}, kStore);
  const auto repair = window.TakeNext(), first = window.TakeNext();
  EXPECT_EQ(repair->first_seq, 12u);
  EXPECT_EQ(repair->skipped, 7u);
  EXPECT_EQ(first->first_seq, 13u);
  EXPECT_EQ(first->skipped, 0u);

  const auto again = window.Resume(4, kStore);  // the stream broke before anything was stored
  EXPECT_EQ(again->gone, 0u) << "counted before";
  EXPECT_EQ(again->missing, 0u) << "the batch that tells of it is still there";
  EXPECT_EQ(window.TakeNext()->skipped, 7u);

  const auto first_store = window.Resume(20, kOther);  // has all of it
  EXPECT_EQ(first_store->void_now, 1u) << "what tells of the loss was for the store that has it";
  EXPECT_EQ(first_store->newly_acked, 8u) << "13..20; 5..12 count as lost";
  EXPECT_TRUE(window.empty());

  EXPECT_EQ(window.Resume(12, kStore)->lost, 8u);
  EXPECT_EQ(*window.Ack(20), 8u);
  EXPECT_EQ(window.Resume(2, kStore)->lost, 10u) << "3, 4 and 13..20 counted as acknowledged";
}

TEST(SendWindow, WhatTellsOfALossTakesTheNextNumberWhenNothingIsHeld) {
  SendWindow window;
  window.Add(Batch(2, SendWindow::kRecentBytesMax + 1));
  (void)window.TakeNext();
  (void)window.Ack(2);
  EXPECT_EQ(window.Resume(0, kStore)->missing, 2u);
  window.Bridge({Batch(1), Batch(1)}, kStore);
  EXPECT_EQ(window.TakeNext()->skipped, 2u);
  EXPECT_EQ(window.TakeNext()->first_seq, 4u);
  EXPECT_EQ(*window.Ack(4), 2u);
}

TEST(SendWindow, MakesRoomForWhatTellsOfALoss) {
  SendWindow window;
  window.Add(Batch(1, SendWindow::kRecentBytesMax));
  (void)window.TakeNext();
  (void)window.Ack(1);
  window.Add(Batch(2));
  window.Add(Batch(2));
  EXPECT_EQ(*window.Ack(3), 2u);  // the first has left the ring
  EXPECT_EQ(window.Resume(0, kStore)->missing, 1u);
  EXPECT_EQ(window.RoomBefore(), 1u);
  EXPECT_EQ(window.DropFirst(), 2u);
  EXPECT_EQ(window.RoomBefore(), 3u);
  window.Bridge({Batch(1), Batch(1)}, kStore);
  EXPECT_EQ(window.TakeNext()->skipped, 1u);
  EXPECT_EQ(*window.Ack(5), 4u) << "two that tell of it, and 4 and 5";
}

TEST(SendWindow, RefusesAcknowledgementsOfNumbersNeverGiven) {
  SendWindow window;
  window.Add(Batch(1, 100));
  EXPECT_EQ(window.Ack(2).status().code(), Code::kDataLoss);
  EXPECT_EQ(window.Resume(7).status().code(), Code::kDataLoss);
}

TEST(SendWindow, ClearTellsWhatIsLost) {
  SendWindow window;
  window.Add(Batch(3, 100));
  window.Add(Batch(2, 100));
  (void)window.Ack(3);
  EXPECT_EQ(window.Clear(), 2u);
  EXPECT_EQ(window.Clear(), 0u);
  EXPECT_TRUE(window.empty());
}

}  // namespace
}  // namespace statcollect
