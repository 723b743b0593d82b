// The shapes of call over a real gRPC server, with work that does what a test needs.
#include "server/api/calls.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include "statcollect/v1/query.grpc.pb.h"

namespace statcollect::api {
namespace {

using ::testing::HasSubstr;

// ReadRecords sends messages of 64 KiB without end. Diff and ListScalars run until they are asked
// to stop, GetRun throws, ListRuns answers at once. One runs, none waits.
class EndlessService final : public v1::Query::CallbackService {
 public:
  grpc::ServerWriteReactor<v1::DiffResponse>* Diff(grpc::CallbackServerContext*,
                                                   const v1::DiffRequest*) override {
    using Call = StreamCall<v1::DiffResponse>;
    return Call::Start(pool_, {},
                       [this](const std::stop_token& stop, const Call::Send&, v1::DiffResponse&) {
                         return Endless(stop);
                       });
  }
  grpc::ServerUnaryReactor* ListScalars(grpc::CallbackServerContext*, const v1::ListScalarsRequest*,
                                        v1::ListScalarsResponse*) override {
    return UnaryCall::Start(pool_, [this](const std::stop_token& stop) { return Endless(stop); });
  }
  grpc::ServerUnaryReactor* GetRun(grpc::CallbackServerContext*, const v1::GetRunRequest*,
                                   v1::GetRunResponse*) override {
    return UnaryCall::Start(pool_, [](const std::stop_token&) -> Status {
      throw std::runtime_error("no \x1b[31mluck");
    });
  }
  grpc::ServerUnaryReactor* ListRuns(grpc::CallbackServerContext*, const v1::ListRunsRequest*,
                                     v1::ListRunsResponse*) override {
    return UnaryCall::Start(pool_, [](const std::stop_token&) { return Status::Ok(); });
  }

  grpc::ServerWriteReactor<v1::ReadRecordsResponse>* ReadRecords(
      grpc::CallbackServerContext* context, const v1::ReadRecordsRequest*) override {
    using Call = FlowCall<v1::ReadRecordsResponse>;
    const Pace pace{.patience = std::chrono::milliseconds(patience_),
                    .bytes_per_second_min = rate_};
    return Call::Start(
        pool_, *context, pace, [this](const std::stop_token&, const Call::Send& send) {
          Status status;
          for (std::uint32_t i = 0; status.ok(); ++i) {
            v1::ReadRecordsResponse message;
            message.set_rank(i);
            message.mutable_records()->add_scalars()->set_name(std::string(64 << 10, 'x'));
            status = send(std::move(message));
            sent_ = i + 1;
          }
          std::lock_guard lock(mutex_);
          flow_ended_ = status;
          changed_.notify_all();
          return status;
        });
  }

  Status AwaitEndOfFlow() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return flow_ended_.has_value(); });
    return *flow_ended_;
  }
  std::uint32_t sent() const { return sent_; }
  void SetPatience(int milliseconds, std::uint64_t bytes_per_second_min = 64 << 10) {
    patience_ = milliseconds;
    rate_ = bytes_per_second_min;
  }

  void AwaitEndlessWork() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return running_; });
  }

 private:
  Status Endless(const std::stop_token& stop) {
    std::unique_lock lock(mutex_);
    running_ = true;
    changed_.notify_all();
    changed_.wait(lock, stop, [] { return false; });
    running_ = false;
    return {Code::kCancelled, "stopped"};
  }

  std::mutex mutex_;
  std::condition_variable_any changed_;
  bool running_ = false;
  std::atomic<int> patience_ = 60'000;
  std::atomic<std::uint64_t> rate_ = 64 << 10;
  std::atomic<std::uint32_t> sent_ = 0;
  std::optional<Status> flow_ended_;
  WorkerPool pool_{{.threads = 1, .waiting_max = 0}};
};

class Calls : public ::testing::Test {
 protected:
  Calls() {
    int port = 0;
    server_ = grpc::ServerBuilder()
                  .AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port)
                  .RegisterService(&service_)
                  .BuildAndStart();
    query_ = v1::Query::NewStub(grpc::CreateChannel("127.0.0.1:" + std::to_string(port),
                                                    grpc::InsecureChannelCredentials()));
  }
  ~Calls() override { server_->Shutdown(std::chrono::system_clock::now()); }

  grpc::Status ListRuns() {
    grpc::ClientContext context;
    v1::ListRunsResponse response;
    return query_->ListRuns(&context, {}, &response);
  }
  // Never returns if the work that was cancelled keeps its place.
  void AwaitFreePlace() {
    grpc::Status status = ListRuns();
    while (status.error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED) {
      std::this_thread::yield();
      status = ListRuns();
    }
    EXPECT_TRUE(status.ok()) << status.error_message();
  }

  EndlessService service_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<v1::Query::Stub> query_;
};

TEST_F(Calls, CancelledStreamStopsItsWorkAndFreesItsPlace) {
  grpc::ClientContext context;
  const auto reader = query_->Diff(&context, {});
  service_.AwaitEndlessWork();
  EXPECT_EQ(ListRuns().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  context.TryCancel();
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
  AwaitFreePlace();
}

TEST_F(Calls, CancelledQuestionStopsItsWorkAndFreesItsPlace) {
  grpc::ClientContext context;
  v1::ListScalarsResponse response;
  grpc::Status status;
  std::thread caller([&] { status = query_->ListScalars(&context, {}, &response); });
  service_.AwaitEndlessWork();
  context.TryCancel();
  caller.join();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::CANCELLED);
  AwaitFreePlace();
}

TEST_F(Calls, FlowKeepsOrderAndIsAsFastAsItsReader) {
  grpc::ClientContext context;
  const auto reader = query_->ReadRecords(&context, {});
  v1::ReadRecordsResponse message;
  for (std::uint32_t i = 0; i < 200; ++i) {
    ASSERT_TRUE(reader->Read(&message));
    ASSERT_EQ(message.rank(), i);
  }
  context.TryCancel();
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_EQ(service_.AwaitEndOfFlow().code(), Code::kCancelled);
  AwaitFreePlace();
}

TEST_F(Calls, FlowWaitsForAReaderThatTakesNothingAndThenGivesItUp) {
  service_.SetPatience(300);
  grpc::ClientContext context;
  const auto reader = query_->ReadRecords(&context, {});
  EXPECT_EQ(service_.AwaitEndOfFlow().code(), Code::kDeadlineExceeded);
  // What the connection itself holds, and no more.
  EXPECT_LT(service_.sent(), 400u) << "of 64 KiB each";
  AwaitFreePlace();
  context.TryCancel();
  EXPECT_FALSE(reader->Finish().ok());
}

// Each wait is shorter than the patience; together they are longer.
TEST_F(Calls, FlowIsEndedForAReaderThatTakesTooLittleInItsTime) {
  service_.SetPatience(600, 1 << 30);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(30));
  const auto reader = query_->ReadRecords(&context, {});
  v1::ReadRecordsResponse message;
  std::atomic<bool> ended = false;
  std::thread watcher([&] {
    EXPECT_EQ(service_.AwaitEndOfFlow().code(), Code::kDeadlineExceeded);
    ended = true;
  });
  std::uint32_t read = 0;
  for (; reader->Read(&message); ++read) {
    ASSERT_EQ(message.rank(), read) << "what was sent arrives";
    if (!ended && read % 8 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  watcher.join();
  const grpc::Status status = reader->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_THAT(status.error_message(), HasSubstr("KiB/s"));
  EXPECT_EQ(read, service_.sent() - 1) << "the last one was not sent any more";
  AwaitFreePlace();
}

TEST_F(Calls, ExceptionBecomesTheCallsStatusWithoutEscapes) {
  grpc::ClientContext context;
  v1::GetRunResponse response;
  const grpc::Status status = query_->GetRun(&context, {}, &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INTERNAL);
  EXPECT_THAT(status.error_message(), HasSubstr("no \\x1b[31mluck"));
  AwaitFreePlace();
}

}  // namespace
}  // namespace statcollect::api
