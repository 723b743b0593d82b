// A run that is copied over the wire, also in pieces; and what a collector refuses to take.
#include <algorithm>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/transfer/run_copies.h"
#include "tests/server/transfer/sides.h"

namespace statcollect {
namespace {

using ::testing::HasSubstr;
using testing::SessionOf;
using testing::Side;

std::vector<v1::CopiedAttempt> AttemptsOf(const std::vector<v1::RunPart>& parts) {
  std::vector<v1::CopiedAttempt> attempts;
  for (const v1::RunPart& part : parts) {
    if (part.has_attempt()) attempts.push_back(part.attempt());
  }
  return attempts;
}

v1::Hello HelloOf(const std::vector<v1::RunPart>& parts, std::uint32_t attempt,
                  std::uint32_t rank) {
  for (const v1::RunPart& part : parts) {
    if (!part.has_rank() || part.rank().attempt() != attempt || part.rank().hello().rank() != rank)
      continue;
    v1::Hello hello = part.rank().hello();
    hello.set_copy(attempt);
    return hello;
  }
  ADD_FAILURE() << "no such rank";
  return {};
}

class CopyTest : public ::testing::Test {
 protected:
  // Two launches of two ranks, an alarm, a document, kept.
  void Record() {
    for (std::uint8_t session = 1; session <= 2; ++session) {
      for (std::uint32_t rank = 0; rank < 2; ++rank)
        source_.Record(SessionOf(rank, session, "L" + std::to_string(session)),
                       10 * session + rank);
      source_.clock.Advance(std::chrono::seconds(90));
    }
    const AttemptId second = source_.store.Attempts("base")->back().id;
    const CollectorEvent alarm{
        .rank = 1, .number = 99, .event = {.kind = "norm_explosion", .step = 3, .text = "t"}};
    ASSERT_TRUE(source_.store.PutEvents(second, {&alarm, 1}).ok());
    ASSERT_TRUE(source_.store.PutDocument("base", "noise", std::string(3u << 20, 'n')).ok());
    ASSERT_TRUE(
        source_.store.PutDocument("base", "alarms", std::to_string(second) + " 1 4\n").ok());
    ASSERT_TRUE(source_.store.KeepRun("base", true).ok());
    parts_ = source_.Describe();
  }
  void CopyRank(std::uint32_t attempt, std::uint32_t rank) {
    v1::Welcome welcome;
    (void)target_.Stream(HelloOf(parts_, attempt, rank), {}, true, false, &welcome);
    const Status end = target_.Stream(HelloOf(parts_, attempt, rank),
                                      source_.Read(attempt, rank, welcome), true, false);
    EXPECT_EQ(end.code(), Code::kCancelled) << end.message();  // without a goodbye
  }
  void WriteParts() {
    for (const v1::RunPart& part : parts_) {
      if (part.has_attempt()) continue;
      const Status written = target_.Write(part);
      ASSERT_TRUE(written.ok()) << written.message();
    }
  }
  void ExpectSame() {
    const auto there = target_.Describe();
    ASSERT_EQ(there.size(), parts_.size());
    for (std::size_t i = 0; i < there.size(); ++i)
      EXPECT_EQ(there[i].DebugString(), parts_[i].DebugString());
    for (std::uint32_t attempt = 1; attempt <= 2; ++attempt) {
      for (std::uint32_t rank = 0; rank < 2; ++rank) {
        EXPECT_EQ(target_.Digests(attempt, rank), source_.Digests(attempt, rank));
        EXPECT_GT(source_.Digests(attempt, rank).size(), 20u);
      }
    }
  }

  Side source_, target_;
  std::vector<v1::RunPart> parts_;
};

TEST_F(CopyTest, ARunOfTwoLaunchesIsTheSameAfterwards) {
  Record();
  ASSERT_TRUE(target_.Begin(AttemptsOf(parts_)).ok());
  ASSERT_TRUE(target_.Begin(AttemptsOf(parts_)).ok()) << "again, as after an interruption";
  for (std::uint32_t attempt = 1; attempt <= 2; ++attempt) {
    for (std::uint32_t rank = 0; rank < 2; ++rank) CopyRank(attempt, rank);
  }
  WriteParts();
  WriteParts();
  ExpectSame();
  EXPECT_EQ(target_.collector->GetStatus().agents_dropped_total, 0u);
}

TEST_F(CopyTest, AnInterruptedRankGoesOnAndNothingComesTwice) {
  Record();
  ASSERT_TRUE(target_.Begin(AttemptsOf(parts_)).ok());
  const v1::Hello hello = HelloOf(parts_, 1, 0);
  v1::Welcome welcome;
  (void)target_.Stream(hello, {}, true, false, &welcome);
  auto batches = source_.Read(1, 0, welcome);
  ASSERT_GE(batches.size(), 2u);
  batches.resize(1);
  (void)target_.Stream(hello, batches, true, false, &welcome);
  (void)target_.Stream(hello, {}, true, false, &welcome);
  EXPECT_EQ(welcome.durable_seq(), batches[0].n());
  EXPECT_EQ(welcome.activations(), 700u);
  EXPECT_EQ(welcome.layouts(), 4u);
  EXPECT_EQ(welcome.attempt_start_unix_nanos(), AttemptsOf(parts_)[0].start_unix_nanos());
  CopyRank(1, 0);
  for (const auto& [attempt, rank] : {std::pair(1u, 1u), std::pair(2u, 0u), std::pair(2u, 1u)})
    CopyRank(attempt, rank);
  EXPECT_EQ(target_.collector->GetStatus().duplicate_records_total, 0u);
  WriteParts();
  ExpectSame();
}

TEST_F(CopyTest, TheOriginalsAgentDoesNotResumeAnIncompleteCopyButACompleteOne) {
  Record();
  ASSERT_TRUE(target_.Begin(AttemptsOf(parts_)).ok());
  for (std::uint32_t attempt = 1; attempt <= 2; ++attempt) {
    for (std::uint32_t rank = 0; rank < 2; ++rank) CopyRank(attempt, rank);
  }
  SessionInfo agent = SessionOf(0, 2, "L2");
  agent.if_exists = IfExists::kError;
  EXPECT_EQ(target_.Stream(ToWire(agent, 1), {}, false, true).code(), Code::kAlreadyExists);
  WriteParts();
  v1::Welcome welcome;
  EXPECT_TRUE(target_.Stream(ToWire(agent, 1), {}, false, true, &welcome).ok());
  EXPECT_EQ(welcome.attempt(), 2u);
  EXPECT_EQ(welcome.durable_seq(),
            source_.store.Ranks(source_.store.Attempts("base")->back().id)->at(0).durable_seq);
}

TEST_F(CopyTest, OtherContentUnderTheNameIsLeftAlone) {
  Record();
  target_.Record(SessionOf(0, 7, "other"), 70);
  const auto before = target_.Digests(1, 0);
  const Status begun = target_.Begin(AttemptsOf(parts_));
  EXPECT_EQ(begun.code(), Code::kAlreadyExists);
  EXPECT_THAT(begun.message(), HasSubstr("with other content"));
  const Status opened = target_.Stream(HelloOf(parts_, 1, 0), {}, true, false);
  EXPECT_EQ(opened.code(), Code::kAlreadyExists);
  EXPECT_THAT(opened.message(), HasSubstr("was recorded by another process"));
  for (const v1::RunPart& part : parts_) {
    if (!part.has_rank()) continue;
    const Code code = target_.Write(part).code();
    EXPECT_TRUE(code == Code::kAlreadyExists || code == Code::kNotFound);
  }
  EXPECT_EQ(target_.Digests(1, 0), before);
}

TEST_F(CopyTest, AgentsAndCopiesHaveTheirOwnMethods) {
  Record();
  const v1::Hello hello = HelloOf(parts_, 1, 0);
  Status end = target_.Stream(hello, {}, false, false);
  EXPECT_EQ(end.code(), Code::kFailedPrecondition);
  EXPECT_THAT(end.message(), HasSubstr("`copy` in the hello"));
  end = target_.Stream(ToWire(SessionOf(0), 1), {}, true, false);
  EXPECT_EQ(end.code(), Code::kFailedPrecondition);
  EXPECT_THAT(end.message(), HasSubstr("no `copy` in the hello"));
  end = target_.Stream(hello, {}, true, false);
  EXPECT_EQ(end.code(), Code::kNotFound) << "BeginCopy comes first";
  EXPECT_TRUE(target_.store.ListRuns()->empty());
}

TEST_F(CopyTest, MalformedPartsAreRefused) {
  Record();
  v1::CopiedAttempt attempt = AttemptsOf(parts_)[0], same = attempt;
  EXPECT_EQ(target_.Begin({}).code(), Code::kInvalidArgument);
  EXPECT_EQ(target_.Begin({attempt, same}).code(), Code::kInvalidArgument);
  attempt.set_attempt(0);
  EXPECT_EQ(target_.Begin({attempt}).code(), Code::kInvalidArgument);
  attempt.set_attempt(1);
  attempt.set_world_size(0);
  EXPECT_EQ(target_.Begin({attempt}).code(), Code::kInvalidArgument);
  ASSERT_TRUE(target_.Begin(AttemptsOf(parts_)).ok());

  v1::RunPart part;
  EXPECT_EQ(target_.Write(part).code(), Code::kInvalidArgument);
  part.mutable_document()->set_name("passwords");
  part.mutable_document()->set_last(true);
  EXPECT_EQ(target_.Write(part).code(), Code::kInvalidArgument);
  part.mutable_document()->set_name("captures");
  part.mutable_document()->set_content("garbage");
  EXPECT_EQ(target_.Write(part).code(), Code::kInvalidArgument);
  part.mutable_document()->set_offset(5);
  EXPECT_EQ(target_.Write(part).code(), Code::kUnavailable) << "the pieces before it are missing";
  part.mutable_event()->set_attempt(1);
  EXPECT_EQ(target_.Write(part).code(), Code::kInvalidArgument) << "event number 0";
  part.mutable_event()->set_number(1);
  part.mutable_event()->mutable_event()->set_kind("k");
  part.mutable_event()->set_attempt(9);
  EXPECT_EQ(target_.Write(part).code(), Code::kNotFound);
  *part.mutable_rank() = parts_.back().rank();
  EXPECT_EQ(target_.Write(part).code(), Code::kNotFound) << "its records have not been copied";
  part.mutable_rank()->mutable_hello()->set_session_id("short");
  EXPECT_EQ(target_.Write(part).code(), Code::kInvalidArgument);
}

TEST_F(CopyTest, UnknownRunsLaunchesAndRanks) {
  Record();
  Status end;
  source_.Describe("nothing", &end);
  EXPECT_EQ(end.code(), Code::kNotFound);
  source_.Describe("../etc", &end);
  EXPECT_EQ(end.code(), Code::kInvalidArgument);
  source_.Read(7, 0, {}, &end);
  EXPECT_EQ(end.code(), Code::kNotFound);
  EXPECT_THAT(end.message(), HasSubstr("no launch 7"));
  EXPECT_TRUE(source_.Read(1, 9, {}, &end).empty());
}

}  // namespace
}  // namespace statcollect
