#include "agent/export/spill_queue.h"

#include <gtest/gtest.h>

#include <cstdint>

namespace statcollect {
namespace {

EncodedBatch Of(std::uint32_t records) { return {.records = records, .bytes = "x"}; }

// Puts a batch into the frames at these offsets.
void Write(SpillQueue& queue, std::uint32_t records, FileSpan at) {
  queue.Hold(Of(records));
  const SpillQueue::Batch held = queue.held();
  queue.MoveToFile(held, at);
}

TEST(SpillQueue, ReadsInTheOrderInWhichItWasWritten) {
  SpillQueue queue;
  EXPECT_TRUE(queue.empty());
  Write(queue, 2, {.begin = 100, .end = 150});
  Write(queue, 3, {.begin = 150, .end = 170});
  EXPECT_EQ(queue.records(), 5u);
  EXPECT_EQ(queue.read_at(), 100u);
  queue.Pop({.records = 2, .file = {.begin = 100, .end = 150}});
  EXPECT_EQ(queue.records(), 3u);
  EXPECT_EQ(queue.read_at(), 150u);
  queue.Pop({.records = 3, .file = {.begin = 150, .end = 170}});
  EXPECT_TRUE(queue.empty());
  Write(queue, 1, {.begin = 400, .end = 410});
  EXPECT_EQ(queue.read_at(), 400u) << "what the window has had in between is not read again";
}

TEST(SpillQueue, WhatIsHeldComesAfterTheFileAndIsNotLostBetweenThem) {
  SpillQueue queue;
  Write(queue, 2, {.begin = 0, .end = 10});
  queue.Hold(Of(7));
  EXPECT_EQ(queue.records(), 2u) << "of the frames only";
  queue.Pop({.records = 2, .file = {.begin = 0, .end = 10}});
  EXPECT_FALSE(queue.empty());
  EXPECT_EQ(queue.TakeHeld().records, 7u);
  EXPECT_TRUE(queue.empty());
}

TEST(SpillQueue, ABatchThatWasDroppedWhileItWasWrittenIsNotInTheFile) {
  SpillQueue queue;
  queue.Hold(Of(4));
  const SpillQueue::Batch held = queue.held();
  EXPECT_EQ(queue.Clear(), 4u);
  queue.MoveToFile(held, {.begin = 0, .end = 10});
  EXPECT_TRUE(queue.empty());
}

TEST(SpillQueue, ADamagedFrameLosesItsOwnRecordsAndADamagedHeadAllThatFollow) {
  SpillQueue queue;
  Write(queue, 2, {.begin = 0, .end = spill::kFrameHeadBytes + 9});
  Write(queue, 3, {.begin = spill::kFrameHeadBytes + 9, .end = 1000});
  Write(queue, 4, {.begin = 1000, .end = 2000});
  EXPECT_EQ(queue.Skip({.payload_bytes = 9, .records = 2}), 2u);
  EXPECT_EQ(queue.read_at(), spill::kFrameHeadBytes + 9);
  EXPECT_EQ(queue.Skip({}), 7u);
  EXPECT_EQ(queue.read_at(), 2000u);
  EXPECT_TRUE(queue.empty());
}

TEST(SpillQueue, AMarkThatBecomesDueWhileAnotherIsWrittenStaysDue) {
  SpillQueue queue;
  EXPECT_TRUE(queue.marked());
  queue.RequireMark();
  const std::uint64_t being_written = queue.marks_due();
  queue.RequireMark();
  queue.MarksDone(being_written);
  EXPECT_FALSE(queue.marked());
  queue.MarksDone(queue.marks_due());
  EXPECT_TRUE(queue.marked());
}

}  // namespace
}  // namespace statcollect
