// The real Query and Admin services on a free loopback port, over a store in memory whose scans can
// be held.
#ifndef STATCOLLECT_TESTS_SERVER_API_QUERY_SERVER_H_
#define STATCOLLECT_TESTS_SERVER_API_QUERY_SERVER_H_

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include <grpcpp/grpcpp.h>
#include <grpcpp/impl/codegen/service_type.h>

#include "server/api/services.h"
#include "server/control/control.h"
#include "server/control/event_feed.h"
#include "server/control/run_feed.h"
#include "server/query/query.h"
#include "tests/support/fake_store.h"
#include "tests/support/forwarding_store.h"

namespace statcollect::testing {

// Passes everything on; while held, whoever begins a scan waits inside.
class GatedStore final : public testing::ForwardingStore {
 public:
  using ForwardingStore::ForwardingStore;

  void Hold() {
    Set([this] { held_ = true; });
  }
  void Release() {
    Set([this] { held_ = false; });
  }
  // Who reads events has them and waits until they are released.
  void HoldEvents(bool held) {
    Set([&] { events_held_ = held; });
  }
  // Waits until `count` scans have begun since the store was made.
  void AwaitScans(int count) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return scans_ >= count; });
  }
  int scans() {
    std::lock_guard lock(mutex_);
    return scans_;
  }

  std::unique_ptr<StatScan> ScanStats(AttemptId attempt, std::uint32_t rank,
                                      StepBounds steps) override {
    {
      std::unique_lock lock(mutex_);
      ++scans_;
      changed_.notify_all();
      changed_.wait(lock, [this] { return !held_; });
    }
    return store_.ScanStats(attempt, rank, steps);
  }
  Status VisitRecords(AttemptId attempt, std::uint32_t rank, StepBounds steps,
                      RecordVisitor visitor) override {
    Status visited = store_.VisitRecords(attempt, rank, steps, visitor);
    if (!std::holds_alternative<const Visitor<EventRecord>*>(visitor)) return visited;
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return !events_held_; });
    return visited;
  }

 private:
  template <typename F>
  void Set(F&& change) {
    std::lock_guard lock(mutex_);
    change();
    changed_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  bool held_ = false, events_held_ = false;
  int scans_ = 0;
};

// A collector's health, and removal from the store.
class StoreControl final : public CollectorControl {
 public:
  explicit StoreControl(Store& store) : store_(store) {}
  // That run has a stream open: it is not removed without force.
  void SetOpenRun(const std::string& run) {
    std::lock_guard lock(mutex_);
    open_run_ = run;
  }

  CollectorStatus GetStatus() override {
    return {.version = "9.8.7",
            .pid = 4321,
            .start_unix_nanos = 1,
            .uptime_seconds = 7500,
            .data_dir = "/var/lib/statcollect",
            .fsync = true,
            .state = "ready",
            .runs = store_.ListRuns()->size(),
            .records_total = 1234567,
            .disk_bytes = 3u << 20,
            .disk_free_bytes = std::uint64_t{5} << 30,
            .dropped_by_cause = {{"buffer_full", 1200}, {"closed", 3}},
            .backlog_records = 4000,
            .backlog_bytes = 1u << 20,
            .backlog_oldest_millis = 1500,
            .retention = {.age_seconds_max = 30 * 86400,
                          .disk_bytes_max = std::uint64_t{200} << 30,
                          .note = "the clock moved",
                          .runs_removed = 3,
                          .bytes_removed = 2u << 20,
                          .next = {{.run = "old",
                                    .last_write_unix_nanos = 1,
                                    .bytes = 1u << 20,
                                    .due_unix_nanos = 2},
                                   {.run = "older", .last_write_unix_nanos = 1, .bytes = 0}},
                          .kept = {"base"}}};
  }
  Result<DeletedRun> DeleteRun(const std::string& run, bool force) override {
    const auto attempts = store_.Attempts(run);
    if (attempts->empty()) return Status(Code::kNotFound, "no run '" + run + "'");
    if (IsOpenRun(run) && !force)
      return Status(Code::kFailedPrecondition, "run '" + run + "' is being written; --force");
    DeletedRun deleted;
    for (const AttemptMeta& attempt : *attempts) {
      const auto ranks = store_.Ranks(attempt.id);
      for (const auto& [rank, meta] : *ranks) deleted.records += meta.records;
      ++deleted.attempts;
      if (const Status dropped = store_.DropAttempts({&attempt.id, 1}); !dropped.ok())
        return dropped;
    }
    return deleted;
  }
  Status KeepRun(const std::string& run, bool keep) override { return store_.KeepRun(run, keep); }
  Result<std::uint32_t> RecordSteps(const std::string& run, const std::string& steps) override {
    if (run != "base") return Status(Code::kNotFound, "no run '" + run + "'");
    recorded_steps = steps;
    return 2u;
  }
  std::string recorded_steps;
  Result<RequestedCapture> RequestCapture(const std::string& run,
                                          const std::vector<std::uint32_t>& ranks,
                                          const CaptureSpec& spec) override {
    if (run != "base")
      return Status(Code::kFailedPrecondition, "run '" + run + "' is not connected");
    asked_captures.push_back(spec);
    return RequestedCapture{.request = asked_captures.size(), .ranks = ranks, .told = 1};
  }
  std::vector<CaptureSpec> asked_captures;
  Result<MadeCheckpoint> Checkpoint(const std::string& directory) override {
    if (directory.front() != '/')
      return Status(Code::kInvalidArgument, "'" + directory + "' is relative");
    return MadeCheckpoint{.directory = directory, .files = 12, .bytes = 3u << 20, .linked = true};
  }
  bool IsStreamOpen(std::uint32_t, std::uint32_t) override { return false; }

 private:
  bool IsOpenRun(const std::string& run) {
    std::lock_guard lock(mutex_);
    return run == open_run_;
  }

  Store& store_;
  std::mutex mutex_;
  std::string open_run_;
};

class QueryServer {
 public:
  explicit QueryServer(const QueryLimits& limits = {})
      : gate(store),
        control(store),
        engine_(gate),
        query_(MakeQueryService(engine_, limits, &feed, &runs)),
        admin_(MakeAdminService(control, engine_)) {
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(query_.get()).RegisterService(admin_.get());
    server_ = builder.BuildAndStart();
    address_ = "127.0.0.1:" + std::to_string(port);
  }
  ~QueryServer() {
    gate.Release();
    Stop();
  }

  const std::string& address() const { return address_; }
  grpc::Server& grpc_server() { return *server_; }
  void Stop() {
    if (server_) server_->Shutdown(std::chrono::system_clock::now());
    server_.reset();
  }
  std::shared_ptr<grpc::Channel> Channel() const {
    return grpc::CreateChannel(address_, grpc::InsecureChannelCredentials());
  }

  FakeStore store;
  GatedStore gate;
  StoreControl control;
  RunFeed runs;
  EventFeed feed{&runs};

 private:
  query::QueryEngine engine_;
  std::unique_ptr<grpc::Service> query_, admin_;
  std::unique_ptr<grpc::Server> server_;
  std::string address_;
};

}  // namespace statcollect::testing

#endif  // STATCOLLECT_TESTS_SERVER_API_QUERY_SERVER_H_
