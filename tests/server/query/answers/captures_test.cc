#include "server/query/captures/captures.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/query/answers/captures.h"
#include "server/query/query.h"
#include "server/store/capture_requests.h"
#include "tests/server/query/ask.h"
#include "tests/server/query/run_writer.h"
#include "tests/support/append_batch.h"
#include "tests/support/fake_store.h"

namespace statcollect::query {
namespace {

using testing::FakeStore;
using ::testing::HasSubstr;
using testing::Key;
using testing::RunWriter;
using testing::Tensor;

const std::string kValues = "0123456789abcdef";  // 4 elements of f32

class CapturesTest : public ::testing::Test {
 protected:
  // A run whose rank 0 and 1 have observed `fc` and its gradient in steps 0..2, the last one
  // without an end.
  AttemptId Make() {
    RunWriter writer(store_, "base", 2);
    for (const std::uint32_t rank : {0u, 1u}) {
      for (std::uint64_t step = 0; step < 3; ++step) {
        writer.Observe(rank, step, Key("fc"), Tensor{.values = {1, 2, 3, 4}});
        writer.Observe(rank, step, Key("fc", Kind::kGradOutput), Tensor{.values = {1, 2, 3, 4}});
      }
      writer.NoStepEnd(rank, 2).Unfinished(rank);
    }
    return attempt_ = writer.Commit();
  }
  void Append(std::uint32_t rank, RecordBatch batch) {
    RankMeta meta = store_.Ranks(attempt_)->at(rank);
    batch.first_seq = meta.durable_seq + 1;
    meta.durable_seq = batch.last_seq();
    for (const StepRecord& end : batch.steps) meta.last_step = std::max(*meta.last_step, end.step);
    ASSERT_TRUE(AppendBatch(store_, attempt_, rank, batch, meta).ok());
  }
  void Capture(std::uint32_t rank, std::uint64_t step, std::uint32_t activation, std::size_t from,
               std::size_t to) {
    RecordBatch batch;
    batch.captures.push_back({.step = step,
                              .activation = activation,
                              .layout = 0,
                              .elements = 4,
                              .offset = static_cast<std::uint32_t>(from),
                              .data = kValues.substr(from, to - from)});
    Append(rank, batch);
  }
  void EndStep(std::uint32_t rank, std::uint64_t step) {
    RecordBatch batch;
    batch.steps.push_back({.step = step});
    Append(rank, batch);
  }
  void Ask(const std::string& spec, std::vector<std::uint32_t> ranks = {0, 1}) {
    auto requests = *ReadCaptureRequests(store_, "base");
    requests.push_back({.id = requests.size() + 1,
                        .attempt = attempt_,
                        .ranks = std::move(ranks),
                        .asked_unix_nanos = 5,
                        .spec = *CaptureSpec::Parse(spec)});
    ASSERT_TRUE(WriteCaptureRequests(store_, "base", requests).ok());
  }
  v1::ListCapturesResponse List(CapturesRequest request = {}) {
    request.run = "base";
    const QueryEngine engine(
        store_, [this](AttemptId, std::uint32_t) { return open_; },
        [this](AttemptId, std::uint32_t) { return away_; });
    auto report = testing::Ask(engine, ListCaptures, request);
    EXPECT_TRUE(report.ok()) << report.status().message();
    return report.ok() ? *report : v1::ListCapturesResponse();
  }
  std::string State(std::uint32_t rank) {
    const v1::ListCapturesResponse report = List();
    const v1::CaptureRequestRank& state = report.requests(0).ranks(static_cast<int>(rank));
    why_ = state.why();
    return state.state();
  }
  Status Read(ReadCaptureRequest request, std::string* values = nullptr) {
    request.run = "base";
    request.activation = "fc";
    std::string read;
    const Status status = ReadCapture(
        store_, request, [&](const CaptureRow& row) { return head_ = row, Status::Ok(); },
        [&](const std::string& part) { return read += part, Status::Ok(); }, {});
    if (values != nullptr) *values = read;
    return status;
  }

  FakeStore store_;
  AttemptId attempt_ = 0;
  bool open_ = true, away_ = false;
  std::string why_;
  CaptureRow head_;
};

TEST_F(CapturesTest, ARequestGoesFromWaitingToCapturedOnceTheStepHasEnded) {
  Make();
  Ask("fc@2");
  EXPECT_EQ(State(0), "waiting");
  EXPECT_EQ(why_, "rank 0 is at step 2");
  Capture(0, 2, 0, 0, 8);
  EXPECT_EQ(State(0), "receiving");
  Capture(0, 2, 0, 8, 16);
  EXPECT_EQ(State(0), "receiving") << "another output of the module may follow until the step ends";
  EndStep(0, 2);
  EXPECT_EQ(State(0), "captured");
  EXPECT_EQ(State(1), "waiting");
  EndStep(1, 2);
  EXPECT_EQ(State(1), "overdue");
  EXPECT_THAT(why_, HasSubstr("step 2 has passed (rank 1 is at step 2)"));
  open_ = false;
  EXPECT_EQ(State(1), "ended");
  EXPECT_EQ(State(0), "captured");
}

TEST_F(CapturesTest, WhatTheAgentSaysIsTheReason) {
  Make();
  Ask("fc@1");
  RecordBatch batch;
  batch.events.push_back({.kind = "capture_missed",
                          .step = 1,
                          .text = "not captured: passed",
                          .fields = {{"request", "1"}}});
  Append(1, batch);
  EXPECT_EQ(State(1), "missed");
  EXPECT_EQ(why_, "not captured: passed");
  EXPECT_EQ(State(0), "overdue");
}

TEST_F(CapturesTest, AHalfOfARankThatDiedIsNeverCaptured) {
  Make();
  Ask("fc@2");
  Capture(0, 2, 0, 0, 8);
  open_ = false;
  EXPECT_EQ(State(0), "ended");
  EXPECT_THAT(why_, HasSubstr("before all chunks had arrived"));
  const v1::ListCapturesResponse report = List();
  ASSERT_EQ(report.records_size(), 1);
  EXPECT_FALSE(report.records(0).complete());
  EXPECT_EQ(report.records(0).bytes_stored(), 8u);
  EXPECT_EQ(report.records(0).bytes(), 16u);
  const Status refused = Read({.rank = 0, .step = 2});
  EXPECT_EQ(refused.code(), Code::kFailedPrecondition);
  EXPECT_THAT(refused.message(), HasSubstr("8 of 16 bytes"));
}

TEST_F(CapturesTest, ARankThatLostItsConnectionIsAwayUntilItIsGivenUpOrSaysGoodbye) {
  Make();
  Ask("fc@2");
  open_ = false;
  away_ = true;
  EXPECT_EQ(State(0), "away");
  EXPECT_EQ(why_, "it is not connected now and is asked when it reconnects (rank 0 is at step 2)");
  Capture(0, 2, 0, 0, 16);
  EXPECT_EQ(State(0), "away") << "its step may bring another output";
  RankMeta meta = store_.Ranks(attempt_)->at(1);
  meta.finished = true;
  ASSERT_TRUE(store_.PutRank(attempt_, 1, meta).ok());
  EXPECT_EQ(State(1), "ended");
  away_ = false;
  EXPECT_EQ(State(0), "captured");
}

TEST_F(CapturesTest, ReadsTheValuesAndSaysWhatThereIsInstead) {
  Make();
  Capture(0, 2, 0, 0, 8);
  Capture(0, 2, 0, 8, 16);
  Capture(0, 2, 1, 0, 16);
  std::string values;
  ASSERT_TRUE(Read({.rank = 0, .step = 2, .kind = Kind::kOutput}, &values).ok());
  EXPECT_EQ(values, kValues);
  EXPECT_EQ(head_.def.key.name, "fc");
  EXPECT_EQ(head_.numel, 4u);
  const Status several = Read({.rank = 0, .step = 2});
  EXPECT_EQ(several.code(), Code::kInvalidArgument);
  EXPECT_THAT(several.message(), HasSubstr("fc (grad_output)"));
  const Status none = Read({.rank = 1, .step = 2});
  EXPECT_EQ(none.code(), Code::kNotFound);
  EXPECT_THAT(none.message(), HasSubstr("captured are: step 2, rank 0, fc (output)"));
  EXPECT_EQ(List({.kinds = {Kind::kGradOutput}}).records_size(), 1);
  EXPECT_EQ(List({.ranks = {1}}).records_size(), 0);
  EXPECT_EQ(List({.steps = "0-1"}).records_size(), 0);
  EXPECT_EQ(testing::Ask(store_, ListCaptures, {.run = "base", .request = 9}).status().code(),
            Code::kNotFound);
}

TEST_F(CapturesTest, OfALaunchThatWasSupersededOnlyItsOwnStepsAreThere) {
  Make();
  Capture(0, 0, 0, 0, 16);
  Capture(0, 1, 0, 0, 16);
  RunWriter again(store_, "base", 2);
  again.Observe(0, 1, Key("fc"), Tensor{.values = {1, 2, 3, 4}});
  again.Commit();
  const v1::ListCapturesResponse report = List();
  ASSERT_EQ(report.records_size(), 1);
  EXPECT_EQ(report.records(0).step(), 0u);
}

TEST_F(CapturesTest, ARequestForWhatWasNeverSeenNamesTheClosest) {
  Make();
  EXPECT_TRUE(CheckCanBeCaptured(store_, "base", *CaptureSpec::Parse("fc@9")).ok());
  const Status name = CheckCanBeCaptured(store_, "base", *CaptureSpec::Parse("fcc@9"));
  EXPECT_EQ(name.code(), Code::kNotFound);
  EXPECT_THAT(name.message(), HasSubstr("closest: fc"));
  const Status kind = CheckCanBeCaptured(store_, "base", *CaptureSpec::Parse("fc@9:kind=weight"));
  EXPECT_EQ(kind.code(), Code::kNotFound);
  EXPECT_THAT(kind.message(), HasSubstr("grad_output, output"));
  EXPECT_EQ(CheckCanBeCaptured(store_, "other", *CaptureSpec::Parse("fc@9")).code(),
            Code::kNotFound);
  RunWriter young(store_, "young");
  young.Scalar(0, 0, "loss", 1).Commit();
  EXPECT_TRUE(CheckCanBeCaptured(store_, "young", *CaptureSpec::Parse("anything@9")).ok())
      << "nothing seen yet";
}

TEST_F(CapturesTest, RequestsThatDoNotParseAreDataLoss) {
  Make();
  Ask("fc@2:kind=output,path=0,micro_batch=1,call=2,mode=eval,bytes_max=77");
  const std::string bytes = EncodeCaptureRequests(*ReadCaptureRequests(store_, "base"));
  const auto back = DecodeCaptureRequests(bytes);
  ASSERT_TRUE(back.ok());
  EXPECT_EQ(back->at(0).spec.ToText(),
            "fc@2:kind=output,path=0,micro_batch=1,call=2,mode=eval,bytes_max=77");
  for (std::size_t size = 0; size < bytes.size(); ++size)
    EXPECT_FALSE(DecodeCaptureRequests(bytes.substr(0, size)).ok());
}

}  // namespace
}  // namespace statcollect::query
