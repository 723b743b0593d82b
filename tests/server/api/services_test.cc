#include "server/api/services.h"

#include <cmath>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "proto/convert.h"
#include "statcollect/v1/admin.grpc.pb.h"
#include "statcollect/v1/query.grpc.pb.h"
#include "tests/server/api/query_server.h"
#include "tests/server/query/run_writer.h"

namespace statcollect {
namespace {

using std::chrono::milliseconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::Key;
using testing::QueryServer;
using testing::RunWriter;

constexpr int kSteps = 6;

void Write(Store& store, const std::string& run, double wrong_from_step_3 = 0) {
  RunWriter writer(store, run, 2);
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    writer.Config(rank, {{"lr", "0.1"}});
    for (std::uint64_t step = 0; step < kSteps; ++step) {
      const double wrong = step >= 3 ? wrong_from_step_3 : 0;
      writer.Observe(rank, step, Key("embed"), {.values = {1, 2, 3, 4}});
      writer.Observe(rank, step, Key("ln"), {.values = {1, -2, 3 + wrong, 4}});
      writer.Scalar(rank, step, "loss", 2.0 / (1.0 + static_cast<double>(step)));
    }
    writer.Event(rank, 2, "graph_transition", "a module appeared");
  }
  writer.Commit();
}

class Services : public ::testing::Test {
 protected:
  void Start(const QueryLimits& limits = {}) {
    server_ = std::make_unique<QueryServer>(limits);
    Write(server_->store, "base");
    Write(server_->store, "ort", 0.5);
    query_ = v1::Query::NewStub(server_->Channel());
    admin_ = v1::Admin::NewStub(server_->Channel());
  }
  static v1::DiffRequest BaseAndOrt() {
    v1::DiffRequest request;
    request.set_run_a("base");
    request.set_run_b("ort");
    return request;
  }
  struct Answer {
    int progress_messages = 0;
    std::vector<v1::DiffResponse> messages;
    grpc::Status status;
  };
  Answer Diff(const v1::DiffRequest& request) {
    grpc::ClientContext context;
    Answer answer;
    const auto reader = query_->Diff(&context, request);
    v1::DiffResponse message;
    while (reader->Read(&message)) {
      answer.progress_messages += message.has_progress() ? 1 : 0;
      answer.messages.push_back(message);
    }
    answer.status = reader->Finish();
    return answer;
  }

  std::unique_ptr<QueryServer> server_;
  std::unique_ptr<v1::Query::Stub> query_;
  std::unique_ptr<v1::Admin::Stub> admin_;
};

TEST_F(Services, DiffStreamsProgressThenTheReport) {
  Start({.progress_interval = milliseconds(0)});
  const Answer answer = Diff(BaseAndOrt());
  ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
  ASSERT_FALSE(answer.messages.empty());
  EXPECT_GE(answer.progress_messages, 1);
  EXPECT_EQ(answer.messages.front().progress().total(), kSteps * 2u);
  const v1::DiffReport& report = answer.messages.back().report();
  EXPECT_EQ(report.verdict(), v1::VERDICT_DIVERGED);
  EXPECT_EQ(report.first().step(), 3u);
  EXPECT_EQ(report.first().activation(), "ln");
  EXPECT_EQ(report.first().stage(), v1::STAGE_FORWARD);
  EXPECT_EQ(report.first().reason(), v1::REASON_NUMERIC);
  EXPECT_EQ(report.first().a().dtype(), "f32");
  EXPECT_TRUE(report.has_compared() && report.has_unmatched() && report.has_inputs() &&
              report.has_steps());
  EXPECT_THAT(report.ranks(), ElementsAre(0, 1));
}

TEST_F(Services, ProgressComesNoOftenerThanItsInterval) {
  Start({.progress_interval = std::chrono::hours(1)});
  const Answer answer = Diff(BaseAndOrt());
  EXPECT_EQ(answer.progress_messages, 1);
}

TEST_F(Services, UnknownRunIsNotFoundAndNamesThoseThereAre) {
  Start();
  v1::DiffRequest request = BaseAndOrt();
  request.set_run_b("otr");
  const Answer answer = Diff(request);
  EXPECT_EQ(answer.status.error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_THAT(answer.status.error_message(), HasSubstr("ort"));
  EXPECT_TRUE(answer.messages.empty());
}

TEST_F(Services, HostileRequestsAreRefusedWithoutWork) {
  Start();
  v1::DiffRequest request = BaseAndOrt();
  request.set_run_a("../\x1b[31m");
  Answer answer = Diff(request);
  EXPECT_EQ(answer.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(answer.status.error_message().find('\x1b'), std::string::npos);
  request = BaseAndOrt();
  request.add_kinds(static_cast<v1::Kind>(77));
  EXPECT_EQ(Diff(request).status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  request = BaseAndOrt();
  request.set_tolerance(std::nan(""));
  EXPECT_EQ(Diff(request).status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  request = BaseAndOrt();
  request.set_steps(std::string(1 << 20, ','));
  EXPECT_EQ(Diff(request).status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(server_->gate.scans(), 0);
}

TEST_F(Services, TooManyWaitingQueriesAreRefusedAndStatusStillAnswers) {
  Start({.threads = 1, .waiting_max = 0});
  server_->gate.Hold();
  std::thread caller([&] { EXPECT_TRUE(Diff(BaseAndOrt()).status.ok()); });
  server_->gate.AwaitScans(1);
  const Answer refused = Diff(BaseAndOrt());
  EXPECT_EQ(refused.status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(refused.status.error_message(), HasSubstr("try again"));
  grpc::ClientContext context;
  v1::GetStatusResponse status;
  EXPECT_TRUE(admin_->GetStatus(&context, {}, &status).ok());
  EXPECT_EQ(status.state(), "ready");
  server_->gate.Release();
  caller.join();
}

TEST_F(Services, QueriesPastTheTimeLimitSaySo) {
  Start({.threads = 1, .time_limit = milliseconds(30)});
  server_->gate.Hold();
  // One runs and one waits, whichever came first. The one that waits ends at its limit, which is
  // after the limit of the one that runs; that one ends when its scan is let go.
  std::mutex mutex;
  std::vector<Answer> answers;
  const auto ask = [&] {
    Answer answer = Diff(BaseAndOrt());
    server_->gate.Release();
    std::lock_guard lock(mutex);
    answers.push_back(std::move(answer));
  };
  std::thread one(ask), other(ask);
  one.join();
  other.join();
  for (const Answer& answer : answers) {
    EXPECT_EQ(answer.status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
    EXPECT_THAT(answer.status.error_message(), HasSubstr("--steps"));
  }
}

struct Records {
  std::vector<RecordBatch> batches;
  std::vector<v1::ReadRecordsResponse> messages;
  grpc::Status status;
};

// Every message is valid by the rules of ingest.
Records ReadRecords(v1::Query::Stub& query, const v1::ReadRecordsRequest& request) {
  grpc::ClientContext context;
  Records records;
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::vector<Layout>> layouts;
  const auto reader = query.ReadRecords(&context, request);
  v1::ReadRecordsResponse message;
  while (reader->Read(&message)) {
    auto& known = layouts[{message.attempt(), message.rank()}];
    auto batch = FromWire(message.records(), known);
    EXPECT_TRUE(batch.ok()) << batch.status().message();
    if (!batch.ok()) break;
    known.insert(known.end(), batch->layouts.begin(), batch->layouts.end());
    records.batches.push_back(*std::move(batch));
    records.messages.push_back(message);
  }
  records.status = reader->Finish();
  return records;
}

TEST_F(Services, ReadersOfRecordsAndEventsHoldUpNobodyElse) {
  Start({.waiting_max = 0, .streams = 1, .details = 1});
  server_->gate.Hold();
  grpc::ClientContext exporting;
  v1::ReadRecordsRequest records;
  records.set_run("base");
  const int scans = server_->gate.scans();
  const auto reader = query_->ReadRecords(&exporting, records);
  server_->gate.AwaitScans(scans + 1);
  grpc::ClientContext full;
  EXPECT_EQ(query_->ReadRecords(&full, records)->Finish().error_code(),
            grpc::StatusCode::RESOURCE_EXHAUSTED);
  grpc::ClientContext capturing;
  v1::ReadCaptureRequest capture;
  capture.set_run("base");
  const grpc::Status none = query_->ReadCapture(&capturing, capture)->Finish();
  EXPECT_NE(none.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED) << none.error_message();

  server_->gate.HoldEvents(true);
  grpc::Status shown;
  std::thread showing([&] {
    grpc::ClientContext context;
    v1::GetRunRequest request;
    request.set_run("base");
    v1::GetRunResponse response;
    shown = query_->GetRun(&context, request, &response);
  });
  for (int i = 0; i < 20; ++i) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
    v1::ListRunsResponse runs;
    EXPECT_TRUE(query_->ListRuns(&context, {}, &runs).ok()) << "while a run's events are read";
    std::this_thread::sleep_for(milliseconds(2));
  }
  server_->gate.HoldEvents(false);
  server_->gate.Release();
  showing.join();
  EXPECT_TRUE(shown.ok()) << shown.error_message();
  v1::ReadRecordsResponse message;
  while (reader->Read(&message)) {
  }
  EXPECT_TRUE(reader->Finish().ok());
}

TEST_F(Services, ReadRecordsStreamsARunAsItWasRecorded) {
  Start();
  v1::ReadRecordsRequest request;
  request.set_run("base");
  request.set_sketches(true);
  const Records all = ReadRecords(*query_, request);
  ASSERT_TRUE(all.status.ok()) << all.status.error_message();
  ASSERT_EQ(all.batches.size(), kSteps * 2u) << "one message for each step and rank";
  const RecordBatch& first = all.batches.front();
  ASSERT_EQ(first.activations.size(), 2u);
  EXPECT_EQ(first.activations[1].key.name, "ln");
  EXPECT_EQ(first.layouts.size(), 1u);
  EXPECT_EQ(first.stats.size(), 2u);
  EXPECT_EQ(first.stats.sketch_width, 16u);
  EXPECT_EQ(first.stats.stats[1].max, 4);
  EXPECT_EQ(first.scalars, (std::vector<ScalarRecord>{{"loss", 0, 0, 2.0}}));
  EXPECT_EQ(first.steps, (std::vector<StepRecord>{{0, 0, 1}}));
  EXPECT_EQ(all.batches[4].events.size(), 1u);
  EXPECT_EQ(all.messages[5].rank(), 1u);
  EXPECT_EQ(all.messages[5].attempt(), 1u);
  EXPECT_EQ(all.messages.back().progress().done(), kSteps * 2u);
  EXPECT_EQ(all.messages.back().progress().total(), kSteps * 2u);
}

TEST_F(Services, ReadRecordsSaysWhatIsWrong) {
  Start();
  v1::ReadRecordsRequest request;
  request.set_run("bsae");
  EXPECT_EQ(ReadRecords(*query_, request).status.error_code(), grpc::StatusCode::NOT_FOUND);
  request.set_run("../etc");
  EXPECT_EQ(ReadRecords(*query_, request).status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  request.set_run("base");
  request.set_steps("9-1");
  EXPECT_EQ(ReadRecords(*query_, request).status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  request.clear_steps();
  request.add_kinds(static_cast<v1::Kind>(77));
  EXPECT_EQ(ReadRecords(*query_, request).status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(Services, StreamsOfRecordsLeaveTheQueriesTheirThreads) {
  Start({.threads = 1, .streams = 1});
  server_->gate.Hold();
  v1::ReadRecordsRequest request;
  request.set_run("base");
  std::thread reader([&] { EXPECT_TRUE(ReadRecords(*query_, request).status.ok()); });
  server_->gate.AwaitScans(1);
  grpc::ClientContext context;
  v1::ListRunsResponse runs;
  EXPECT_TRUE(query_->ListRuns(&context, {}, &runs).ok());
  server_->gate.Release();
  reader.join();
}

TEST_F(Services, ListsRunsSeriesScalarsAndEvents) {
  Start();
  {
    grpc::ClientContext context;
    v1::ListRunsResponse runs;
    ASSERT_TRUE(query_->ListRuns(&context, {}, &runs).ok());
    ASSERT_EQ(runs.runs_size(), 2);
    EXPECT_EQ(runs.runs(0).run(), "base");
    EXPECT_EQ(runs.runs(0).ranks(), 2u);
    EXPECT_EQ(runs.runs(0).last_step(), kSteps - 1u);
    EXPECT_EQ(runs.runs(0).state(), "finished");
  }
  {
    grpc::ClientContext context;
    v1::GetRunRequest request;
    request.set_run("base");
    v1::GetRunResponse run;
    ASSERT_TRUE(query_->GetRun(&context, request, &run).ok());
    EXPECT_EQ(run.config().at("lr"), "0.1");
    EXPECT_EQ(run.attempts(0).ranks_size(), 2);
    EXPECT_EQ(run.events_size(), 2);
    EXPECT_EQ(run.kinds(0).kind(), v1::KIND_OUTPUT);
  }
  {
    grpc::ClientContext context;
    v1::GetSeriesRequest request;
    request.set_run("base");
    request.set_activation("ln");
    request.add_ranks(1);
    request.set_steps("2-3");
    v1::GetSeriesResponse series;
    ASSERT_TRUE(query_->GetSeries(&context, request, &series).ok());
    ASSERT_EQ(series.records_size(), 2);
    EXPECT_EQ(series.records(0).step(), 2u);
    EXPECT_EQ(series.records(0).stats().min(), -2);
    EXPECT_EQ(series.records(0).stats().shape(0), 4);
    EXPECT_NE(series.records(0).stats().hash(), 0u);
  }
  {
    grpc::ClientContext context;
    v1::ListScalarsRequest request;
    request.set_run("ort");
    request.set_name("loss");
    v1::ListScalarsResponse scalars;
    ASSERT_TRUE(query_->ListScalars(&context, request, &scalars).ok());
    EXPECT_EQ(scalars.records_size(), 2 * kSteps);
    EXPECT_EQ(scalars.records(0).value(), 2.0);
  }
  {
    grpc::ClientContext context;
    v1::ListEventsRequest request;
    request.set_run("ort");
    request.add_ranks(1);
    v1::ListEventsResponse events;
    ASSERT_TRUE(query_->ListEvents(&context, request, &events).ok());
    ASSERT_EQ(events.records_size(), 1);
    EXPECT_EQ(events.records(0).text(), "a module appeared");
  }
}

TEST_F(Services, CheckpointSaysWhereItIsAndRefusesBadPaths) {
  Start();
  v1::CheckpointRequest request;
  v1::CheckpointResponse response;
  const auto ask = [&](const std::string& directory) {
    grpc::ClientContext context;
    request.set_directory(directory);
    return admin_->Checkpoint(&context, request, &response).error_code();
  };
  ASSERT_EQ(ask("/backup"), grpc::StatusCode::OK);
  EXPECT_EQ(response.directory(), "/backup");
  EXPECT_EQ(response.files(), 12u);
  EXPECT_TRUE(response.linked());
  EXPECT_EQ(ask(""), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(ask(std::string(5000, '/')), grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(Services, DeleteRunRemovesItAndRefusesWhileItIsWritten) {
  Start();
  server_->control.SetOpenRun("ort");
  v1::DeleteRunRequest request;
  request.set_run("ort");
  v1::DeleteRunResponse response;
  {
    grpc::ClientContext context;
    EXPECT_EQ(admin_->DeleteRun(&context, request, &response).error_code(),
              grpc::StatusCode::FAILED_PRECONDITION);
  }
  request.set_force(true);
  {
    grpc::ClientContext context;
    ASSERT_TRUE(admin_->DeleteRun(&context, request, &response).ok());
    EXPECT_EQ(response.attempts(), 1u);
    EXPECT_GT(response.records(), 0u);
  }
  EXPECT_THAT(*server_->store.ListRuns(), ElementsAre("base"));
  request.set_run("no good\nname");
  {
    grpc::ClientContext context;
    EXPECT_EQ(admin_->DeleteRun(&context, request, &response).error_code(),
              grpc::StatusCode::INVALID_ARGUMENT);
  }
}

}  // namespace
}  // namespace statcollect
