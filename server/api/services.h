// The collector's Query and Admin services, for whoever builds the gRPC server (main.cc, tests).
//
// Threads: both use gRPC's callback API and never work on gRPC's threads. Queries run on a small pool of
// their own, so that they never hold up ingest; what only reads the catalogue (runs, show, config) has one
// more thread, so that it is answered while long ones run; streams of records, which last as long as their
// reader takes, on another, so that they never hold up other queries; administration has one thread of its
// own, so that status is answered while every query thread is busy, and checkpoints another.
#ifndef STATCOLLECT_SERVER_API_SERVICES_H_
#define STATCOLLECT_SERVER_API_SERVICES_H_

#include <chrono>
#include <cstddef>
#include <memory>

namespace grpc {
class Service;
}

namespace statcollect {

class CollectorControl;
class EventFeed;
namespace query {
class QueryEngine;
}

struct QueryLimits {
  std::size_t threads = 2;                            // queries that run at once
  std::size_t waiting_max = 16;                       // beyond that: RESOURCE_EXHAUSTED
  std::chrono::milliseconds time_limit{600'000};      // of one query, its wait included: DEADLINE_EXCEEDED
  std::chrono::milliseconds progress_interval{100};   // at least that between two Progress messages of a Diff
  std::size_t streams = 2;                            // ReadRecords that run at once
  std::size_t quick_waiting_max = 2048;               // of questions that only read the catalogue
  std::chrono::milliseconds stream_patience{60'000};  // a reader that takes nothing for that long is given up
  std::size_t followers_max = 256;                    // of events, at once
};

// Usage:
//   auto query = MakeQueryService(engine, {});
//   auto admin = MakeAdminService(control, engine);
//   builder.RegisterService(query.get()).RegisterService(admin.get());
// The services must outlive the grpc::Server; `engine` and `control` must outlive the services. Destruction
// cancels what still runs and waits for it: shut the server down first.
// `feed`: tells FollowEvents what is new; outlives the service. Null: it is not offered.
std::unique_ptr<grpc::Service> MakeQueryService(const query::QueryEngine& engine,
                                                const QueryLimits& limits = {}, EventFeed* feed = nullptr);
std::unique_ptr<grpc::Service> MakeAdminService(CollectorControl& control, const query::QueryEngine& engine);

}  // namespace statcollect

#endif  // STATCOLLECT_SERVER_API_SERVICES_H_
