#include "agent/staging/capture_queue.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>

namespace statcollect {
namespace {

constexpr std::uint64_t kChunk = CaptureQueue::kChunkBytes;

class CaptureQueueTest : public ::testing::Test {
 protected:
  CapturedTensor* Reserve(std::uint64_t bytes, std::uint64_t step = 0) {
    return queue_.Reserve(
        {.activation = 3, .layout = 1, .step = step, .bytes_max = bytes, .requests = "7"}, bytes,
        bytes);
  }
  void Fill(CapturedTensor* tensor, char with) {
    std::memset(tensor->data(), with, tensor->bytes());
    queue_.Commit(tensor);
  }
  bool Balanced() const {
    const AgentCounters c = ledger_.Snapshot();
    return c.produced == c.acked + c.dropped() + c.pending;
  }

  Ledger ledger_;
  CaptureQueue queue_{&ledger_};
};

TEST_F(CaptureQueueTest, ChunksOfATensorLeaveInOrderAndOneAfterTheOther) {
  CapturedTensor* slow = Reserve(10);
  CapturedTensor* large = Reserve(2 * kChunk + 5, 4);
  EXPECT_EQ(ledger_.Snapshot().pending, 4u);
  EXPECT_FALSE(queue_.HasReady());
  Fill(large, 'b');
  ASSERT_TRUE(queue_.HasReady());
  EXPECT_FALSE(queue_.Peek().last);
  const CaptureChunk first = queue_.Pop();
  EXPECT_EQ(first.offset, 0u);
  EXPECT_EQ(first.data, std::string(kChunk, 'b'));
  EXPECT_EQ(first.elements, 2 * kChunk + 5);
  EXPECT_EQ(first.step, 4u);
  Fill(slow, 'a');
  EXPECT_EQ(queue_.Pop().offset, kChunk)
      << "the one that has begun, although an older one is ready now";
  EXPECT_TRUE(queue_.Peek().last);
  EXPECT_EQ(queue_.Pop().data, std::string(5, 'b'));
  EXPECT_EQ(queue_.Pop().data, std::string(10, 'a'));
  EXPECT_TRUE(queue_.empty());
}

TEST_F(CaptureQueueTest, ATensorWithoutElementsIsOneEmptyChunk) {
  Fill(Reserve(0), 'x');
  ASSERT_TRUE(queue_.HasReady());
  EXPECT_TRUE(queue_.Peek().last);
  EXPECT_TRUE(queue_.Pop().data.empty());
  EXPECT_TRUE(queue_.empty());
}

TEST_F(CaptureQueueTest, MemoryIsBoundedAndWhatDoesNotFitIsCounted) {
  ASSERT_NE(Reserve(CaptureQueue::kBytesMax), nullptr);
  EXPECT_EQ(Reserve(1), nullptr);
  EXPECT_EQ(ledger_.Snapshot().dropped_by_cause.at("capture_memory"), 1u);
  EXPECT_TRUE(Balanced());
}

TEST_F(CaptureQueueTest, RoomComesBackWhenATensorHasLeftOrIsGivenUp) {
  CapturedTensor* tensor = Reserve(CaptureQueue::kBytesMax);
  queue_.GiveUp(tensor, kDropGraphCapture);
  EXPECT_EQ(ledger_.Snapshot().dropped_by_cause.at("graph_capture"),
            CaptureQueue::kBytesMax / kChunk);
  Fill(Reserve(CaptureQueue::kBytesMax), 'c');
  while (queue_.HasReady()) (void)queue_.Pop();
  EXPECT_NE(Reserve(1), nullptr);
  EXPECT_TRUE(Balanced());
}

TEST_F(CaptureQueueTest, TheOldestStepIsThatOfAnythingThatHasNotLeft) {
  EXPECT_FALSE(queue_.OldestStep());
  CapturedTensor* late = Reserve(1, 9);
  CapturedTensor* early = Reserve(1, 5);
  EXPECT_EQ(queue_.OldestStep(), 5u);
  Fill(early, 'e');
  EXPECT_EQ(queue_.OldestStep(), 5u) << "ready is not gone";
  (void)queue_.Pop();
  EXPECT_EQ(queue_.OldestStep(), 9u);
  Fill(late, 'l');
}

TEST_F(CaptureQueueTest, WhatIsBeingWrittenWhenEverythingIsDroppedIsCountedByItsWriter) {
  CapturedTensor* writing = Reserve(3 * kChunk);
  Fill(Reserve(2 * kChunk), 'r');
  (void)queue_.Pop();
  const std::uint64_t dropped = queue_.DropAll();
  EXPECT_EQ(dropped, 1u) << "one of the two chunks has left";
  ledger_.Drop(kDropClosed, dropped);
  ledger_.Ack(1);
  EXPECT_EQ(ledger_.Snapshot().pending, 3u);
  Fill(writing, 'w');
  EXPECT_EQ(ledger_.Snapshot().pending, 0u);
  EXPECT_EQ(ledger_.Snapshot().dropped_by_cause.at("closed"), 4u);
  EXPECT_EQ(Reserve(1), nullptr) << "nothing is taken any more";
  EXPECT_TRUE(Balanced());
}

}  // namespace
}  // namespace statcollect
