// A removal that takes minutes, while the collector does everything else.
#include <chrono>
#include <functional>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/ingest/purger.h"
#include "tests/server/ingest/harness.h"

namespace statcollect {
namespace {

using namespace std::chrono_literals;
using ::testing::ElementsAre;
using testing::FakeStore;
using testing::Harness;
using ::testing::HasSubstr;
using testing::NthBatch;

SessionInfo SessionOf(const std::string& run, std::uint8_t session) {
  SessionInfo info = Harness::Session(0, session, 1);
  info.run = run;
  return info;
}

// A run that has ended.
void RecordRun(Harness& h, const std::string& run, std::uint8_t session) {
  auto agent = h.Agent(SessionOf(run, session));
  agent->Open();
  ASSERT_TRUE(agent->WriteBatch(NthBatch(0)));
  ASSERT_TRUE(agent->AwaitAck(NthBatch(0).last_seq()));
  ASSERT_TRUE(agent->WriteGoodbye());
  EXPECT_TRUE(agent->Finish().ok());
}

class PurgeTest : public ::testing::Test {
 protected:
  // Far above what any of it takes, far below what the removal would.
  void MustReturn(const std::string& what, const std::function<void()>& call) {
    SCOPED_TRACE(what);
    auto returned = std::async(std::launch::async, call);
    const bool in_time = returned.wait_for(20s) == std::future_status::ready;
    EXPECT_TRUE(in_time) << "it waited for the removal";
    if (!in_time) h_.store.ReleasePurges();
    returned.get();
  }

  Harness h_;
};

TEST_F(PurgeTest, WhileDataIsDeletedEverythingElseGoesOn) {
  RecordRun(h_, "old", 1);
  RecordRun(h_, "older", 2);
  auto training = h_.Agent(SessionOf("training", 3));
  training->Open();
  h_.store.BlockPurges();
  MustReturn("remove", [&] {
    const auto deleted = h_.collector->DeleteRun("old", false);
    ASSERT_TRUE(deleted.ok()) << deleted.status().message();
    EXPECT_EQ(deleted->records, NthBatch(0).records());
  });
  h_.store.AwaitPurge(1);
  EXPECT_THAT(h_.store.ListRuns().value(), ElementsAre("older", "training"));
  MustReturn("health", [&] { EXPECT_EQ(h_.collector->GetStatus().state, "ready"); });
  MustReturn("acknowledge", [&] {
    ASSERT_TRUE(training->WriteBatch(NthBatch(0)));
    EXPECT_TRUE(training->AwaitAck(NthBatch(0).last_seq()));
  });
  MustReturn("keep", [&] { EXPECT_TRUE(h_.collector->KeepRun("training", true).ok()); });
  MustReturn("hello and goodbye under the name that became free", [&] { RecordRun(h_, "old", 4); });
  MustReturn("remove again", [&] { EXPECT_TRUE(h_.collector->DeleteRun("older", false).ok()); });
  MustReturn("replace", [&] {
    SessionInfo info = SessionOf("old", 5);
    info.launch = "another";
    info.if_exists = IfExists::kReplace;
    auto agent = h_.Agent(info);
    agent->Open();
    EXPECT_TRUE(agent->WriteGoodbye());
    EXPECT_TRUE(agent->Finish().ok());
  });
  MustReturn("health", [&] { EXPECT_EQ(h_.collector->GetStatus().runs, 2u); });
  MustReturn("stop", [&] { h_.collector->Drain(); });
  EXPECT_EQ(h_.store.retired(), 3u) << "the next start deletes them";
}

TEST_F(PurgeTest, WhatWasRetiredWhileAPurgeRanIsDeletedAfterIt) {
  RecordRun(h_, "first", 1);
  RecordRun(h_, "second", 2);
  h_.store.BlockPurges();
  ASSERT_TRUE(h_.collector->DeleteRun("first", false).ok());
  h_.store.AwaitPurge(1);
  ASSERT_TRUE(h_.collector->DeleteRun("second", false).ok());
  h_.store.ReleasePurges();
  EXPECT_TRUE(Harness::Eventually([&] { return h_.store.retired() == 0; }));
}

TEST(Purger, FinishesWhatAnEarlierProcessLeft) {
  FakeStore store;
  const AttemptId id = store.CreateAttempt({.run = "a"})->id;
  ASSERT_TRUE(store.RetireAttempts({&id, 1}).ok());
  Purger purger(store, [](const std::string&) {});
  EXPECT_TRUE(Harness::Eventually([&] { return store.retired() == 0; }));
}

TEST(Purger, TriesAgainAfterAFailureAndTellsItOnce) {
  FakeStore store;
  const AttemptId id = store.CreateAttempt({.run = "a"})->id;
  ASSERT_TRUE(store.RetireAttempts({&id, 1}).ok());
  store.FailPurges({Code::kUnavailable, "input/output error"});
  std::vector<std::string> lines;
  {
    Purger purger(
        store, [&](const std::string& line) { lines.push_back(line); }, 1ms);
    store.AwaitPurge(4);
    EXPECT_EQ(store.retired(), 1u);
    store.FailPurges(Status::Ok());
    EXPECT_TRUE(Harness::Eventually([&] { return store.retired() == 0; }));
  }
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_THAT(lines[0],
              HasSubstr("delete the data of removed runs: input/output error; tried again"));
}

}  // namespace
}  // namespace statcollect
