// FollowRuns over real gRPC: what there is, what changes, and how it ends.
#include <chrono>
#include <memory>
#include <string>
#include <thread>

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include "server/api/live_board.h"
#include "statcollect/v1/query.grpc.pb.h"
#include "tests/server/api/query_server.h"

namespace statcollect {
namespace {

using testing::QueryServer;

constexpr QueryLimits kQuick{.live_interval = std::chrono::milliseconds(20),
                             .live_beat = std::chrono::milliseconds(300)};

class LiveTest : public ::testing::Test {
 protected:
  explicit LiveTest(const QueryLimits& limits = kQuick) : server_(limits) {
    stub_ = v1::Query::NewStub(server_.Channel());
  }
  struct Reader {
    grpc::ClientContext context;
    std::unique_ptr<grpc::ClientReader<v1::FollowRunsResponse>> stream;
    std::string cursor;
    // "whole +name:records -name |": the next message that says something.
    std::string Next() {
      v1::FollowRunsResponse message;
      do {
        if (!stream->Read(&message)) return "end";
        cursor = message.cursor();
      } while (message.runs_size() + message.removed_size() == 0 && !message.whole());
      std::string text = message.whole() ? "whole " : "";
      for (const v1::RunChange& change : message.runs()) {
        text += "+" + change.run().run() + ":" + std::to_string(change.run().records());
        text += change.events() > 0 ? "!" + std::to_string(change.events()) + " " : " ";
      }
      for (const std::string& run : message.removed()) text += "-" + run + " ";
      return text + (message.caught_up() ? "|" : "");
    }
    grpc::StatusCode End() {
      for (v1::FollowRunsResponse message; stream->Read(&message);) continue;
      return stream->Finish().error_code();
    }
  };
  std::unique_ptr<Reader> Follow(const std::vector<std::string>& runs = {},
                                 const std::string& cursor = "") {
    auto reader = std::make_unique<Reader>();
    reader->context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
    v1::FollowRunsRequest request;
    for (const std::string& run : runs) request.add_runs(run);
    request.set_cursor(cursor);
    reader->stream = stub_->FollowRuns(&reader->context, request);
    return reader;
  }
  AttemptId Make(const std::string& run) {
    return server_.store.CreateAttempt({.run = run, .world_size = 1})->id;
  }
  void Put(AttemptId attempt, std::uint64_t records) {
    ASSERT_TRUE(server_.store.PutRank(attempt, 0, {.records = records}).ok());
  }

  QueryServer server_;
  std::unique_ptr<v1::Query::Stub> stub_;
};

TEST_F(LiveTest, SendsWhatThereIsThenWhatChanges) {
  const AttemptId base = Make("base"), ort = Make("ort");
  Put(base, 5);
  Put(ort, 7);
  const auto reader = Follow();
  EXPECT_EQ(reader->Next(), "whole +base:5 +ort:7 |");
  Put(ort, 8);
  server_.runs.Changed("ort");
  EXPECT_EQ(reader->Next(), "+ort:8 |");
  server_.feed.Publish({.run = "base", .attempt = 1, .rank = 0, .event = {.kind = "overflow"}});
  EXPECT_EQ(reader->Next(), "+base:5!1 |");
  ASSERT_TRUE(server_.store.DropAttempts({&ort, 1}).ok());
  server_.runs.Changed("ort");
  EXPECT_EQ(reader->Next(), "-ort |");
}

TEST_F(LiveTest, SendsEveryChangeOfOneRunUntilItIsGone) {
  const AttemptId ort = Make("ort");
  const auto reader = Follow({"ort"});
  EXPECT_EQ(reader->Next(), "whole +ort:0 |");
  for (std::uint64_t records = 1; records <= 5; ++records) {
    Put(ort, records);
    server_.runs.Changed("ort");
    EXPECT_EQ(reader->Next(), "+ort:" + std::to_string(records) + " |");
  }
  for (std::uint64_t events = 1; events <= 3; ++events) {
    server_.feed.Publish({.run = "ort", .attempt = 1, .rank = 0, .event = {.kind = "overflow"}});
    EXPECT_EQ(reader->Next(), "+ort:5!" + std::to_string(events) + " |");
  }
  const std::string before = reader->cursor;
  ASSERT_TRUE(server_.store.DropAttempts({&ort, 1}).ok());
  server_.runs.Changed("ort");
  EXPECT_EQ(reader->Next(), "-ort |");
  EXPECT_EQ(Follow({"ort"}, before)->Next(), "-ort |") << "a follower that reconnects is told, too";
  Put(Make("ort"), 1);
  server_.runs.Changed("ort");
  EXPECT_EQ(reader->Next(), "+ort:1!3 |");
}

TEST_F(LiveTest, AnEmptyCollectorSaysSoAndANewRunAppears) {
  const auto reader = Follow();
  EXPECT_EQ(reader->Next(), "whole |");
  Make("first");
  server_.runs.Changed("first");
  EXPECT_EQ(reader->Next(), "+first:0 |");
}

TEST_F(LiveTest, KeepsToTheRunsThatWereAskedFor) {
  Make("base");
  const AttemptId ort = Make("ort");
  const auto reader = Follow({"ort", "later"});
  EXPECT_EQ(reader->Next(), "whole +ort:0 |");
  server_.runs.Changed("base");
  Make("later");
  server_.runs.Changed("later");
  EXPECT_EQ(reader->Next(), "+later:0 |");
  Put(ort, 2);
  server_.runs.Changed("ort");
  EXPECT_EQ(reader->Next(), "+ort:2 |");
}

TEST_F(LiveTest, ACursorContinuesAndAForeignOneBeginsAgain) {
  const AttemptId base = Make("base");
  Make("ort");
  const auto first = Follow();
  EXPECT_EQ(first->Next(), "whole +base:0 +ort:0 |");
  const std::string cursor = first->cursor;
  first->context.TryCancel();
  EXPECT_EQ(first->End(), grpc::StatusCode::CANCELLED);
  Put(base, 3);
  server_.runs.Changed("base");
  EXPECT_EQ(Follow({}, cursor)->Next(), "+base:3 |") << "nothing of the run that did not change";
  for (const char* foreign :
       {"5f-1", "nonsense", "-", "ffffffffffffffffffff-1", "1-99999999999999999999999"})
    EXPECT_EQ(Follow({}, foreign)->Next(), "whole +ort:0 +base:3 |") << foreign;
}

TEST_F(LiveTest, SaysAtLeastThatItLives) {
  const auto reader = Follow();
  EXPECT_EQ(reader->Next(), "whole |");
  v1::FollowRunsResponse message;
  const auto began = std::chrono::steady_clock::now();
  ASSERT_TRUE(reader->stream->Read(&message));
  EXPECT_EQ(message.runs_size() + message.removed_size(), 0);
  EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(5));
}

TEST_F(LiveTest, EndsWhenTheCollectorDoes) {
  const auto reader = Follow();
  EXPECT_EQ(reader->Next(), "whole |");
  server_.runs.Close();
  EXPECT_EQ(reader->End(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(Follow()->End(), grpc::StatusCode::UNAVAILABLE);
}

TEST_F(LiveTest, RefusesBadNamesAndCursorsThatAreNone) {
  EXPECT_EQ(Follow({"no name"})->End(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(Follow({}, std::string(1000, 'x'))->End(), grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(LiveTest, ManyRunsComeInPartsOfOneWhole) {
  for (int n = 0; n < 1234; ++n) Make("run" + std::to_string(n));
  const auto reader = Follow();
  int runs = 0, messages = 0;
  for (v1::FollowRunsResponse message; reader->stream->Read(&message);) {
    EXPECT_EQ(message.whole(), messages++ == 0);
    runs += message.runs_size();
    if (message.caught_up()) break;
  }
  EXPECT_EQ(runs, 1234);
  EXPECT_EQ(messages, 3);
}

class CrowdedLiveTest : public LiveTest {
 protected:
  CrowdedLiveTest()
      : LiveTest({.followers_max = 1, .live_interval = std::chrono::milliseconds(20)}) {}
};

TEST_F(CrowdedLiveTest, OneTooManyIsRefusedUntilAnotherLeaves) {
  const auto first = Follow();
  EXPECT_EQ(first->Next(), "whole |");
  EXPECT_EQ(Follow()->End(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  first->context.TryCancel();
  EXPECT_EQ(first->End(), grpc::StatusCode::CANCELLED);
  std::string text;
  for (int n = 0; n < 400 && text != "whole |"; ++n) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    text = Follow()->Next();
  }
  EXPECT_EQ(text, "whole |");
}

TEST(LiveCursor, IsReadAsItWasWritten) {
  const api::LiveBoard::Place place{.epoch = 0xabcdef, .number = 42};
  const api::LiveBoard::Place read = api::LiveBoard::Parse(api::LiveBoard::Text(place));
  EXPECT_EQ(read.epoch, place.epoch);
  EXPECT_EQ(read.number, place.number);
}

TEST(RunFeed, CostsNothingWhileNobodyWatches) {
  RunFeed feed;
  feed.Changed("a");
  EXPECT_TRUE(feed.Take().runs.empty());
  int woken = 0;
  feed.Watch([&] { ++woken; });
  feed.Changed("a");
  feed.Changed("b");
  feed.Evented("b");
  EXPECT_EQ(woken, 1) << "once until it is taken";
  const RunFeed::Changes changes = feed.Take();
  EXPECT_EQ(changes.runs.size(), 2u);
  EXPECT_EQ(changes.events.at("b"), 1u);
  feed.Watch({});
  feed.Changed("a");
  EXPECT_TRUE(feed.Take().runs.empty());
}

}  // namespace
}  // namespace statcollect
