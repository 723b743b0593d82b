#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/query/answers/runs.h"
#include "server/query/query.h"
#include "tests/server/query/ask.h"
#include "tests/server/query/run_writer.h"
#include "tests/support/fake_store.h"

namespace statcollect::query {
namespace {

using testing::Ask;
using ::testing::ElementsAre;
using testing::FakeStore;
using ::testing::HasSubstr;
using testing::Key;
using ::testing::Pair;
using testing::RunWriter;
using testing::Tensor;

const Tensor kTensor{.values = {1, 2, 3}};

TEST(Runs, AnEmptyStoreHasNone) {
  FakeStore store;
  QueryEngine engine(store);
  EXPECT_TRUE(Ask(engine, ListRuns, {})->runs().empty());
  const Status s = Ask(engine, GetRun, "base").status();
  EXPECT_EQ(s.code(), Code::kNotFound);
  EXPECT_THAT(s.message(), HasSubstr("none"));
}

TEST(Runs, SummaryCountsOverAttemptsAndDescribesTheNewest) {
  FakeStore store;
  RunWriter first(store, "r", 2), second(store, "r", 3);
  for (std::uint64_t step = 0; step < 5; ++step)
    first.Observe(0, step, Key("x"), kTensor).Observe(1, step, Key("x"), kTensor);
  for (std::uint64_t step = 3; step < 9; ++step) second.Observe(0, step, Key("x"), kTensor);
  first.Dropped(0, 4).Commit();
  second.Dropped(0, 2).Commit();
  RunWriter(store, "another").Commit();
  auto runs = Ask(store, ListRuns, {});
  ASSERT_EQ(runs->runs_size(), 2);
  EXPECT_EQ(runs->runs(0).run(), "another");
  EXPECT_EQ(runs->runs(0).steps(), 0u);
  EXPECT_FALSE(runs->runs(0).has_first_step());
  const v1::RunSummary& r = runs->runs(1);
  EXPECT_EQ(r.attempts(), 2u);
  EXPECT_EQ(r.world_size(), 3u);
  EXPECT_EQ(r.ranks(), 1u);
  EXPECT_EQ(r.records(), 2u * (5 + 5 + 6));
  EXPECT_EQ(r.steps(), 9u);
  EXPECT_EQ(r.first_step(), 0u);
  EXPECT_EQ(r.last_step(), 8u);
  EXPECT_EQ(r.dropped(), 6u);
  EXPECT_EQ(r.start_unix_nanos(), 1000);
  EXPECT_EQ(r.end_unix_nanos(), 9001);
}

TEST(Runs, StepsAreCountedOverRanksThatBeginApart) {
  FakeStore store;
  RunWriter run(store, "r", 2);
  for (std::uint64_t step = 0; step < 4; ++step) run.Observe(0, step, Key("x"), kTensor);
  for (std::uint64_t step = 2; step < 6; ++step) run.Observe(1, step, Key("x"), kTensor);
  run.Commit();
  EXPECT_EQ(Ask(store, ListRuns, {})->runs(0).steps(), 6u);
}

TEST(Runs, AreCompleteWithTheRanksThatRecord) {
  FakeStore store;
  RunWriter run(store, "r", 4);
  const AttemptId id = run.Observe(0, 0, Key("x"), kTensor).Commit();
  const auto summary = [&] { return Ask(store, ListRuns, {})->runs(0); };
  EXPECT_EQ(summary().state(), "interrupted");
  EXPECT_EQ(summary().ranks_expected(), 4u);
  RankMeta meta = store.Ranks(id)->at(0);
  meta.info.ranks = "0,2-3";
  ASSERT_TRUE(store.PutRank(id, 0, meta).ok());
  EXPECT_EQ(summary().ranks_expected(), 3u);
  EXPECT_EQ(summary().state(), "interrupted") << "ranks 2 and 3 have not come";
  meta.info.ranks = "0";
  ASSERT_TRUE(store.PutRank(id, 0, meta).ok());
  EXPECT_EQ(summary().ranks_expected(), 1u);
  EXPECT_EQ(summary().world_size(), 4u);
  EXPECT_EQ(summary().state(), "finished");
}

TEST(Runs, StateIsRunningFinishedOrInterrupted) {
  FakeStore store;
  RunWriter live(store, "live", 1), done(store, "done", 2), broken(store, "broken", 2),
      lost(store, "lost", 2);
  const AttemptId id = live.Observe(0, 0, Key("x"), kTensor).Unfinished(0).Commit();
  done.Observe(0, 0, Key("x"), kTensor).Observe(1, 0, Key("x"), kTensor).Commit();
  broken.Observe(0, 0, Key("x"), kTensor).Observe(1, 0, Key("x"), kTensor).Unfinished(1).Commit();
  lost.Observe(0, 0, Key("x"), kTensor).Commit();  // rank 1 of 2 was never seen
  QueryEngine engine(store, [id](AttemptId attempt, std::uint32_t) { return attempt == id; });
  std::map<std::string, std::string> states;
  const auto runs = Ask(engine, ListRuns, {});
  for (const v1::RunSummary& run : runs->runs()) states[run.run()] = run.state();
  EXPECT_THAT(states, ElementsAre(Pair("broken", "interrupted"), Pair("done", "finished"),
                                  Pair("live", "running"), Pair("lost", "interrupted")));
  EXPECT_EQ(Ask(engine, GetRun, "broken")->attempts(0).ranks(0).state(), "finished");
  EXPECT_EQ(Ask(engine, GetRun, "broken")->attempts(0).ranks(1).state(), "interrupted");
}

TEST(Runs, DetailHasRanksConfigurationEventsAndKinds) {
  FakeStore store;
  RunWriter run(store, "r", 2);
  run.Observe(0, 0, Key("x"), kTensor)
      .Observe(0, 0, Key("y"), kTensor)
      .Observe(0, 0, Key("y", Kind::kGradOutput), kTensor);
  run.Observe(1, 0, Key("x"), kTensor)
      .Config(0, {{"lr", "1"}})
      .Config(1, {{"lr", "2"}})
      .Dropped(1, 3);
  for (int i = 0; i < 70; ++i) run.Event(0, 0, "joined").Event(1, 0, "joined");
  run.Commit();
  auto detail = Ask(store, GetRun, "r");
  ASSERT_TRUE(detail.ok());
  EXPECT_EQ(detail->config().at("lr"), "1");
  EXPECT_EQ(detail->events_size(), 100);
  EXPECT_EQ(detail->activations(), 3u);
  ASSERT_EQ(detail->kinds_size(), 2);
  EXPECT_EQ(detail->kinds(0).kind(), v1::KIND_OUTPUT);
  EXPECT_EQ(detail->kinds(0).activations(), 2u);
  ASSERT_EQ(detail->attempts_size(), 1);
  EXPECT_EQ(detail->attempts(0).attempt(), 1u);
  ASSERT_EQ(detail->attempts(0).ranks_size(), 2);
  const v1::RankInfo& rank = detail->attempts(0).ranks(1);
  EXPECT_EQ(rank.rank(), 1u);
  EXPECT_EQ(rank.host(), "node1");
  EXPECT_EQ(rank.pid(), 101);
  EXPECT_EQ(rank.stat_records(), 1u);
  EXPECT_EQ(rank.steps(), 1u);
  EXPECT_EQ(rank.dropped().at("buffer_full"), 3u);
  EXPECT_EQ(rank.durable_seq(), rank.records());
}

}  // namespace
}  // namespace statcollect::query
