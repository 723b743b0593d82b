// The collector's Query and Admin services, for the code that builds the gRPC server (main.cc,
// tests).
//
// Threads: both use gRPC's callback API and never work on gRPC's threads. Each group of calls has
// its own threads, so that it is not held up by the others: queries a small pool, separate from
// ingest; queries that only read the catalogue (runs, show, config) one thread; streams of records,
// which last as long as their reader, another pool; administration one thread; checkpoints another.
#ifndef STATCOLLECT_SERVER_API_SERVICES_H_
#define STATCOLLECT_SERVER_API_SERVICES_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace grpc {
class Service;
}

namespace statcollect {

class CollectorControl;
class EventFeed;
class RunFeed;
namespace access {
class AuditLog;
}
namespace query {
class QueryEngine;
}

struct QueryLimits {
  std::size_t threads = 2;       // queries that run at the same time
  std::size_t waiting_max = 16;  // queries that may wait; more are refused with RESOURCE_EXHAUSTED
  std::chrono::milliseconds time_limit{
      600'000};  // of one query, including its wait; then DEADLINE_EXCEEDED
  std::chrono::milliseconds progress_interval{
      100};  // minimum between two Progress messages of a Diff
  std::size_t streams =
      8;  // ReadRecords calls that run at the same time; mostly they wait for their readers
  std::size_t captures = 8;              // the same of ReadCapture
  std::size_t details = 2;               // the same of GetRun, which reads a run's events
  std::size_t quick_waiting_max = 2048;  // of GetRun, and of queries that only read the catalogue
  // a reader of records or captures that takes nothing for this long, or in all that much longer
  // than at this rate, is ended with DEADLINE_EXCEEDED
  std::chrono::milliseconds stream_patience{60'000};
  std::uint64_t stream_bytes_per_second_min = 64 << 10;
  std::size_t followers_max = 256;  // of events, at the same time; and as many of runs
  std::chrono::milliseconds live_interval{
      1'000};  // between two messages of FollowRuns, while things change
  std::chrono::milliseconds live_beat{10'000};  // the same while nothing does
};

// Usage:
//   auto query = MakeQueryService(engine, {});
//   auto admin = MakeAdminService(control, engine);
//   builder.RegisterService(query.get()).RegisterService(admin.get());
// The services must outlive the grpc::Server; `engine` and `control` must outlive the services.
// Destruction cancels running calls and waits for them: shut the server down first. `feed` provides
// new events for FollowEvents, `runs` changes for FollowRuns; both must outlive the service. Null:
// the call is not offered.
std::unique_ptr<grpc::Service> MakeQueryService(const query::QueryEngine& engine,
                                                const QueryLimits& limits = {},
                                                EventFeed* feed = nullptr, RunFeed* runs = nullptr);
struct AdminOptions {
  const access::AuditLog* audit =
      nullptr;                  // must outlive the service; null: ListAudit is not offered
  std::string checkpoint_root;  // see CheckpointTarget; empty: none
  std::function<bool()> any_path = [] { return true; };
};
std::unique_ptr<grpc::Service> MakeAdminService(CollectorControl& control,
                                                const query::QueryEngine& engine,
                                                AdminOptions options = {});

}  // namespace statcollect

#endif  // STATCOLLECT_SERVER_API_SERVICES_H_
