// FollowEvents over real gRPC: what there is, what comes, and how it ends.
#include <chrono>
#include <memory>
#include <string>
#include <thread>

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include "statcollect/v1/query.grpc.pb.h"
#include "tests/server/api/query_server.h"

namespace statcollect {
namespace {

using testing::QueryServer;

class FollowTest : public ::testing::Test {
 protected:
  explicit FollowTest(const QueryLimits& limits = {}) : server_(limits) {
    stub_ = v1::Query::NewStub(server_.Channel());
    context_.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
  }
  static EventRecord Event(const std::string& kind, std::uint64_t step, const std::string& text) {
    return {
        .kind = kind, .step = step, .unix_nanos = static_cast<std::int64_t>(step), .text = text};
  }
  void Put(const EventRecord& event, std::uint64_t number) {
    const CollectorEvent own{.rank = 0, .number = number, .event = event};
    ASSERT_TRUE(server_.store.PutEvents(attempt_, std::span(&own, 1)).ok());
  }
  void Follow(const v1::ListEventsRequest& request) {
    stream_ = stub_->FollowEvents(&context_, request);
  }
  // Texts of the next message that has some; an empty text where the list is complete.
  std::string Next() {
    v1::FollowEventsResponse message;
    if (!stream_->Read(&message)) return "end";
    std::string text;
    for (const v1::EventRow& row : message.records()) text += row.text() + " ";
    return text + (message.caught_up() ? "|" : "");
  }
  bool Eventually(const std::function<bool()>& condition) {
    for (int n = 0; n < 2000 && !condition(); ++n)
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    return condition();
  }
  static v1::ListEventsRequest Of(const std::string& run) {
    v1::ListEventsRequest request;
    request.set_run(run);
    return request;
  }

  QueryServer server_;
  AttemptId attempt_ = server_.store.CreateAttempt({.run = "base", .world_size = 1})->id;
  std::unique_ptr<v1::Query::Stub> stub_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReader<v1::FollowEventsResponse>> stream_;
};

TEST_F(FollowTest, SendsWhatThereIsThenWhatComes) {
  ASSERT_TRUE(server_.store.PutRank(attempt_, 0, {}).ok());
  Put(Event("overflow", 1, "one"), 1);
  Put(Event("overflow", 2, "two"), 2);
  Follow(Of("base"));
  EXPECT_EQ(Next(), "one two |");
  server_.feed.Publish(
      {.run = "base", .attempt = 1, .rank = 0, .event = Event("overflow", 3, "three")});
  EXPECT_EQ(Next(), "three ");
  server_.feed.Publish(
      {.run = "other", .attempt = 1, .rank = 0, .event = Event("overflow", 4, "of another run")});
  server_.feed.Publish(
      {.run = "base", .attempt = 1, .rank = 1, .event = Event("overflow", 4, "four")});
  EXPECT_EQ(Next(), "four ");
}

TEST_F(FollowTest, WaitsForARunThatIsNotThereAndKeepsToWhatWasAskedFor) {
  v1::ListEventsRequest request = Of("later");
  request.add_kinds("nan_first_seen");
  request.add_ranks(1);
  request.set_since_step(10);
  Follow(request);
  EXPECT_EQ(Next(), "|");
  const auto publish = [&](const char* kind, std::uint64_t step, std::uint32_t rank,
                           const char* text) {
    server_.feed.Publish(
        {.run = "later", .attempt = 1, .rank = rank, .event = Event(kind, step, text)});
  };
  publish("overflow", 10, 1, "another kind");
  publish("nan_first_seen", 9, 1, "too early");
  publish("nan_first_seen", 10, 0, "another rank");
  publish("nan_first_seen", 10, 1, "this");
  EXPECT_EQ(Next(), "this ");
}

TEST_F(FollowTest, WhatIsListedAndToldIsSentOnce) {
  ASSERT_TRUE(server_.store.PutRank(attempt_, 0, {}).ok());
  Put(Event("overflow", 1, "one"), 1);
  Put(Event("overflow", 2, "two"), 2);
  server_.gate.HoldEvents(true);
  Follow(Of("base"));
  ASSERT_TRUE(Eventually([&] { return server_.feed.followers() == 1; }));
  for (const auto& [step, text] : {std::pair(2, "two"), std::pair(3, "three")}) {
    server_.feed.Publish({.run = "base",
                          .attempt = 1,
                          .rank = 0,
                          .event = Event("overflow", static_cast<std::uint64_t>(step), text)});
  }
  server_.gate.HoldEvents(false);
  EXPECT_EQ(Next(), "one two three |");
}

TEST_F(FollowTest, ACancelledCallFreesItsPlace) {
  Follow(Of("base"));
  EXPECT_EQ(Next(), "|");
  EXPECT_EQ(server_.feed.followers(), 1u);
  context_.TryCancel();
  EXPECT_EQ(stream_->Finish().error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_TRUE(Eventually([&] { return server_.feed.followers() == 0; }));
}

TEST_F(FollowTest, EndsWithTheFeedAndSendsWhatCameBefore) {
  Follow(Of("base"));
  EXPECT_EQ(Next(), "|");
  server_.feed.Publish(
      {.run = "base", .attempt = 1, .rank = 0, .event = Event("overflow", 3, "last words")});
  server_.feed.Close();
  EXPECT_EQ(Next(), "last words ");
  EXPECT_EQ(Next(), "end");
  EXPECT_EQ(stream_->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
}

TEST_F(FollowTest, ABadNameIsRefused) {
  Follow(Of("no name"));
  EXPECT_EQ(Next(), "end");
  EXPECT_EQ(stream_->Finish().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
}

class CrowdedFollowTest : public FollowTest {
 protected:
  CrowdedFollowTest() : FollowTest({.followers_max = 1}) {}
};

TEST_F(CrowdedFollowTest, OneTooManyIsRefused) {
  Follow(Of("base"));
  EXPECT_EQ(Next(), "|");
  grpc::ClientContext context;
  const auto second = stub_->FollowEvents(&context, Of("base"));
  v1::FollowEventsResponse message;
  EXPECT_FALSE(second->Read(&message));
  EXPECT_EQ(second->Finish().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
}

}  // namespace
}  // namespace statcollect
