#include "server/ingest/session.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/ingest/trim.h"
#include "tests/support/append_batch.h"
#include "tests/support/fake_store.h"
#include "tests/support/random_batch.h"

namespace statcollect {
namespace {

using testing::AddStat;
using testing::BatchShape;
using testing::FakeStore;
using ::testing::HasSubstr;
using testing::MakeActivation;
using testing::MakeLayout;
using testing::RandomBatch;

// A rank of a stored attempt, its session, and what is written for it.
class IngestSessionTest : public ::testing::Test {
 protected:
  IngestSessionTest() {
    attempt_ = store_.CreateAttempt({.run = "base", .world_size = 1}).value().id;
    EXPECT_TRUE(store_.PutRank(attempt_, 0, {}).ok());
    Reconnect();
  }

  void Reconnect() {
    const RankMeta meta = store_.Ranks(attempt_).value().at(0);
    session_ = IngestSession::Load(store_, attempt_, meta, budget_).value();
  }
  // Accepts and stores.
  Status Send(const RecordBatch& batch) {
    auto accepted = session_->Accept(batch, 77);
    if (!accepted.ok()) return accepted.status();
    last_ = *std::move(accepted);
    if (!last_.batch) return Status::Ok();
    return AppendBatch(store_, attempt_, 0, *last_.batch, last_.meta);
  }
  Code CodeOf(const RecordBatch& batch) { return session_->Accept(batch, 77).status().code(); }
  RankMeta Stored() { return store_.Ranks(attempt_).value().at(0); }

  // One record of activation `id` in `step`, defined if `define`.
  static RecordBatch One(std::uint64_t seq, std::uint32_t id, std::uint64_t step,
                         bool define = true) {
    std::mt19937_64 rng(seq);
    RecordBatch batch;
    batch.first_seq = seq;
    if (define) {
      batch.activations = {MakeActivation(id)};
      batch.layouts = {MakeLayout(0)};
    }
    AddStat(&batch, id, MakeLayout(0), step, 0, rng);
    return batch;
  }

  FakeStore store_;
  AttemptId attempt_ = 0;
  DefinitionBudget budget_;
  std::unique_ptr<IngestSession> session_;
  IngestSession::Accepted last_;
};

TEST_F(IngestSessionTest, CountsRecordsStepsAndBoundsOfWhatItAccepts) {
  const RecordBatch batch = RandomBatch(1, 1, {.activations = 5, .first_step = 10, .steps = 3});
  ASSERT_TRUE(Send(batch).ok());
  const RankMeta meta = Stored();
  EXPECT_EQ(meta.durable_seq, batch.last_seq());
  EXPECT_EQ(meta.records, batch.records());
  EXPECT_EQ(meta.stat_records, 15u);
  EXPECT_EQ(meta.steps, 3u);
  EXPECT_EQ(meta.first_step, 10u);
  EXPECT_EQ(meta.last_step, 12u);
  EXPECT_EQ(meta.last_write_unix_nanos, 77);
  EXPECT_FALSE(meta.finished);
}

TEST_F(IngestSessionTest, SkipsBatchAlreadyStoredAfterReconnect) {
  const RecordBatch batch = RandomBatch(1, 1);
  ASSERT_TRUE(Send(batch).ok());
  Reconnect();
  ASSERT_TRUE(Send(batch).ok());
  EXPECT_FALSE(last_.batch);
  EXPECT_EQ(last_.duplicates, batch.records());
  EXPECT_EQ(session_->received(), batch.last_seq());
  EXPECT_EQ(Stored().records, batch.records());
}

TEST_F(IngestSessionTest, TrimsThePartThatIsStoredAndKeepsDefinitions) {
  RecordBatch whole = RandomBatch(1, 1, {.activations = 4, .steps = 2});
  testing::AddObservations(&whole, 0);
  for (std::uint64_t stored = 1; stored < whole.records(); ++stored) {
    SCOPED_TRACE(stored);
    FakeStore store;
    const AttemptId attempt = store.CreateAttempt({.run = "r", .world_size = 1}).value().id;
    ASSERT_TRUE(store.PutRank(attempt, 0, {}).ok());
    auto session = IngestSession::Load(store, attempt, {}, budget_).value();
    // The front part alone, as an earlier batch: the whole without its back.
    RecordBatch front = whole;
    const std::uint64_t stats = std::min<std::uint64_t>(stored, whole.stats.size());
    RecordBatch back = whole;
    TrimFront(&back, stored);
    front.stats = {};
    front.stats.sketch_width = whole.stats.sketch_width;
    std::mt19937_64 rng(1);
    for (std::uint64_t i = 0; i < stats; ++i) {
      AddStat(&front, whole.stats.activation[i], whole.layouts[whole.stats.layout[i]],
              whole.stats.step[i], whole.stats.order[i], rng);
    }
    front.scalars.resize(whole.scalars.size() - back.scalars.size());
    front.events.resize(whole.events.size() - back.events.size());
    front.memory.resize(whole.memory.size() - back.memory.size());
    front.densities.resize(whole.densities.size() - back.densities.size());
    front.settings.resize(whole.settings.size() - back.settings.size());
    front.steps.resize(whole.steps.size() - back.steps.size());
    front.exponents.resize(whole.exponents.size() - back.exponents.size());
    front.tokens.resize(whole.tokens.size() - back.tokens.size());
    ASSERT_EQ(front.records(), stored);

    ASSERT_TRUE(session->Accept(front, 1).ok());
    auto accepted = session->Accept(whole, 2);
    ASSERT_TRUE(accepted.ok()) << accepted.status().message();
    ASSERT_TRUE(accepted->batch);
    EXPECT_EQ(accepted->duplicates, stored);
    EXPECT_EQ(accepted->batch->first_seq, stored + 1);
    EXPECT_EQ(accepted->batch->last_seq(), whole.last_seq());
    EXPECT_EQ(accepted->batch->activations, whole.activations);
    EXPECT_TRUE(testing::operator==(accepted->batch->stats, back.stats));
    EXPECT_EQ(accepted->batch->memory, back.memory);
    EXPECT_EQ(accepted->batch->densities, back.densities);
    EXPECT_EQ(accepted->batch->settings, back.settings);
    EXPECT_EQ(accepted->batch->exponents, back.exponents);
    EXPECT_EQ(accepted->batch->tokens, back.tokens);
    EXPECT_EQ(session->meta().info.config.at("model.layers"), "4");
    EXPECT_TRUE(accepted->meta.info.config.empty())
        << "thousands of settings would be copied with each batch";
    EXPECT_EQ(accepted->meta.records, whole.records());
    EXPECT_EQ(accepted->meta.steps, 2u);
  }
}

TEST_F(IngestSessionTest, TrimsSketchesAndSamplesWithTheirRecords) {
  RecordBatch batch = RandomBatch(3, 1, {.activations = 3, .steps = 1});
  batch.stats.sample_count = {2, 0, 1};
  batch.stats.samples = {1, 2, 3};
  const std::vector<double> last(batch.stats.SketchOf(2).begin(), batch.stats.SketchOf(2).end());
  TrimFront(&batch, 2);
  EXPECT_EQ(batch.first_seq, 3u);
  EXPECT_EQ(batch.stats.size(), 1u);
  EXPECT_EQ(batch.stats.samples, std::vector<double>{3});
  EXPECT_EQ(batch.stats.sketch, last);
}

TEST_F(IngestSessionTest, RefusesAGapAndSaysWhatItExpected) {
  ASSERT_TRUE(Send(One(1, 0, 0)).ok());
  const Status status = session_->Accept(One(3, 0, 1, false), 0).status();
  EXPECT_EQ(status.code(), Code::kOutOfRange);
  EXPECT_THAT(status.message(), HasSubstr("3"));
  EXPECT_THAT(status.message(), HasSubstr("expected 2"));
  EXPECT_TRUE(Send(One(2, 0, 1, false)).ok()) << "a refusal changes nothing";
}

TEST_F(IngestSessionTest, TakesAGapThatTheAgentDeclares) {
  ASSERT_TRUE(Send(One(1, 0, 0)).ok());
  RecordBatch batch = One(9, 0, 1, false);
  batch.skipped = 6;  // 3..8: 2 is missing
  EXPECT_EQ(session_->Accept(batch, 0).status().code(), Code::kOutOfRange);
  batch.skipped = 7;
  const auto accepted = session_->Accept(batch, 0);
  ASSERT_TRUE(accepted.ok()) << accepted.status().message();
  EXPECT_EQ(accepted->duplicates, 0u);
  EXPECT_EQ(session_->received(), 9u);
  EXPECT_EQ(session_->meta().records, 2u);
  EXPECT_EQ(session_->Accept(batch, 0)->duplicates, 1u) << "twice";
}

TEST_F(IngestSessionTest, TakesARepeatedDefinitionOnlyIfItIsTheSame) {
  ASSERT_TRUE(Send(One(1, 0, 0)).ok());
  RecordBatch other = One(2, 0, 1);
  other.activations[0].class_name = "Linear";
  EXPECT_EQ(CodeOf(other), Code::kInvalidArgument);
  RecordBatch layout = One(2, 0, 1);
  layout.layouts[0].shape = {1};
  EXPECT_EQ(CodeOf(layout), Code::kInvalidArgument);
  EXPECT_TRUE(Send(One(2, 0, 1)).ok());
}

TEST_F(IngestSessionTest, RefusesDefinitionsThatAreNotDense) {
  ASSERT_TRUE(Send(One(1, 0, 0)).ok());
  EXPECT_EQ(CodeOf(One(2, 2, 1)), Code::kInvalidArgument);
  RecordBatch twice = One(2, 1, 1);
  twice.activations = {MakeActivation(1), MakeActivation(1)};
  EXPECT_EQ(CodeOf(twice), Code::kInvalidArgument);
  EXPECT_TRUE(Send(One(2, 1, 1)).ok());
}

TEST_F(IngestSessionTest, RefusesTwoIdsForOneIdentity) {
  ASSERT_TRUE(Send(One(1, 0, 0)).ok());
  RecordBatch known = One(2, 1, 1);
  known.activations[0].key = MakeActivation(0).key;
  EXPECT_EQ(CodeOf(known), Code::kInvalidArgument);
  RecordBatch own = One(2, 1, 1);
  own.activations = {MakeActivation(1), MakeActivation(2)};
  own.activations[1].key = own.activations[0].key;
  EXPECT_EQ(CodeOf(own), Code::kInvalidArgument);
  Reconnect();
  EXPECT_EQ(CodeOf(known), Code::kInvalidArgument)
      << "identities are known again after a reconnect";
}

TEST_F(IngestSessionTest, RefusesIdsThatNobodyDefined) {
  EXPECT_EQ(CodeOf(One(1, 0, 0, false)), Code::kInvalidArgument);
  RecordBatch layout = One(1, 0, 0);
  layout.stats.layout[0] = 1;
  EXPECT_EQ(CodeOf(layout), Code::kInvalidArgument);
}

TEST_F(IngestSessionTest, RefusesStepsThatGoBack) {
  ASSERT_TRUE(Send(One(1, 0, 5)).ok());
  EXPECT_EQ(CodeOf(One(2, 1, 4)), Code::kInvalidArgument);
  Reconnect();
  EXPECT_EQ(CodeOf(One(2, 1, 4)), Code::kInvalidArgument) << "also after a reconnect";
  EXPECT_TRUE(Send(One(2, 1, 5)).ok());
}

TEST_F(IngestSessionTest, TakesAnActivationOnceAStep) {
  ASSERT_TRUE(Send(One(1, 0, 5)).ok());
  const Status status = session_->Accept(One(2, 0, 5, false), 0).status();
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("at most once a step"));
  Reconnect();
  EXPECT_EQ(CodeOf(One(2, 0, 5, false)), Code::kInvalidArgument) << "also after a reconnect";
  RecordBatch twice = One(2, 0, 6, false);
  std::mt19937_64 rng(1);
  AddStat(&twice, 0, MakeLayout(0), 6, 1, rng);
  EXPECT_EQ(CodeOf(twice), Code::kInvalidArgument);
  EXPECT_TRUE(Send(One(2, 0, 6, false)).ok());
  EXPECT_EQ(Stored().steps, 2u);
}

TEST_F(IngestSessionTest, CountsAStepThatGoesOnAfterAReconnectOnce) {
  ASSERT_TRUE(Send(One(1, 0, 5)).ok());
  Reconnect();
  ASSERT_TRUE(Send(One(2, 1, 5)).ok());
  EXPECT_EQ(Stored().steps, 1u);
}

TEST_F(IngestSessionTest, FindsTheLastStepBehindAScalarOfAFarLaterStep) {
  ASSERT_TRUE(Send(One(1, 0, 5)).ok());
  RecordBatch far;
  far.first_seq = 2;
  far.scalars = {{"loss", ~std::uint64_t{0}, 0, 1.0}};
  ASSERT_TRUE(Send(far).ok());
  Reconnect();
  EXPECT_EQ(CodeOf(One(3, 0, 5, false)), Code::kInvalidArgument);
  EXPECT_TRUE(Send(One(3, 0, 6, false)).ok());
}

TEST_F(IngestSessionTest, BoundsTheConfigurationThatARankAdds) {
  RecordBatch batch = One(1, 0, 0);
  for (std::size_t i = 0; i < kSettingsMax; ++i)
    batch.settings.push_back({"key" + std::to_string(i), "v"});
  ASSERT_TRUE(Send(batch).ok());
  RecordBatch again = One(batch.last_seq() + 1, 0, 1, false);
  again.settings = {{"key0", "w"}};
  ASSERT_TRUE(Send(again).ok()) << "a known name takes no more room";
  Reconnect();
  again = One(again.last_seq() + 1, 0, 2, false);
  again.settings = {{"one more", "v"}};
  EXPECT_EQ(CodeOf(again), Code::kResourceExhausted);
}

TEST_F(IngestSessionTest, RefusesABatchWithoutRecordsOrNumber) {
  RecordBatch empty;
  empty.first_seq = 1;
  EXPECT_EQ(CodeOf(empty), Code::kInvalidArgument);
  EXPECT_EQ(CodeOf(One(0, 0, 0)), Code::kInvalidArgument);
}

RecordBatch Loss(std::uint64_t seq, const std::string& cause, const std::string& count) {
  RecordBatch batch;
  batch.first_seq = seq;
  batch.events = {{"records_dropped", 0, 0, "lost", {{"cause", cause}, {"count", count}}}};
  return batch;
}

TEST_F(IngestSessionTest, AddsUpReportedLossesAndTheGoodbyeOnlyOnce) {
  ASSERT_TRUE(Send(Loss(1, "buffer_full", "3")).ok());
  ASSERT_TRUE(Send(Loss(2, "buffer_full", "4")).ok());
  ASSERT_TRUE(Send(Loss(2, "buffer_full", "4")).ok()) << "sent twice, counted once";
  EXPECT_EQ(Stored().dropped.at("buffer_full"), 7u);
  AgentCounters counters;
  counters.dropped_by_cause = {{"buffer_full", 9}, {"closed", 2}, {"rejected", 0}};
  const auto last = session_->Finish(counters, 99);
  EXPECT_EQ(last.meta.dropped,
            (std::map<std::string, std::uint64_t>{{"buffer_full", 9}, {"closed", 2}}));
  EXPECT_EQ(last.dropped, 4u);
  EXPECT_TRUE(last.meta.finished);
  EXPECT_FALSE(last.batch);
}

TEST_F(IngestSessionTest, KeepsAFewCausesWhateverAgentsInvent) {
  for (std::uint64_t i = 1; i <= 200; ++i)
    ASSERT_TRUE(Send(Loss(i, "cause " + std::to_string(i), "1")).ok());
  ASSERT_TRUE(Send(Loss(201, std::string(5000, 'x'), "1")).ok());
  ASSERT_TRUE(Send(Loss(202, "nonsense", "-1")).ok());
  ASSERT_TRUE(Send(Loss(203, "huge", "18446744073709551616")).ok());
  const auto dropped = Stored().dropped;
  EXPECT_LE(dropped.size(), 33u);
  std::uint64_t sum = 0;
  for (const auto& [cause, count] : dropped) sum += count;
  EXPECT_EQ(sum, 201u);
}

}  // namespace
}  // namespace statcollect
