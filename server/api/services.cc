#include "server/api/services.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "common/project.h"
#include "common/text.h"
#include "server/access/audit_log.h"
#include "server/access/current.h"
#include "server/api/arena_messages.h"
#include "server/api/calls.h"
#include "server/api/checkpoint_target.h"
#include "server/api/convert.h"
#include "server/api/convert/parts.h"
#include "server/api/follow_call.h"
#include "server/api/heat_tiles.h"
#include "server/api/leaf_queries.h"
#include "server/api/live_board.h"
#include "server/api/live_call.h"
#include "server/control/control.h"
#include "server/query/captures/captures.h"
#include "server/query/query.h"
#include "server/query/records/records_reader.h"
#include "statcollect/v1/admin.grpc.pb.h"
#include "statcollect/v1/query.grpc.pb.h"

namespace statcollect {
namespace {

using api::FlowCall;
using api::FromWire;
using api::StreamCall;
using api::ToWire;
using api::UnaryCall;
using api::WorkerPool;
using grpc::CallbackServerContext;
using grpc::ServerUnaryReactor;
using query::FromWire;

// The engine of the project that a call is about. Made where the call starts, used by its work.
class Asked {
 public:
  explicit Asked(const query::QueryEngine& engine)
      : all_(engine),
        project_(access::CurrentPrincipal().project),
        only_(access::CurrentPrincipal().only_project),
        engine_(engine.Of(project_)) {}
  const query::QueryEngine* operator->() const { return engine_.get(); }
  const query::QueryEngine& operator*() const { return *engine_; }

  // kNotFound: nothing was ever recorded in the project, and the caller may know which there are.
  Status CheckExists(const std::string& attempted) const {
    if (project_ == kDefaultProject || !only_.empty()) return Status::Ok();
    const auto projects = all_.ListProjects();
    if (!projects.ok() ||
        std::find(projects->begin(), projects->end(), project_) != projects->end())
      return Status::Ok();
    return {Code::kNotFound,
            attempted + ": there is no project '" + project_ + "'; " +
                (projects->empty() ? "there are no runs yet" : "there are: " + Joined(*projects))};
  }
  void ForgetTiles(api::HeatTiles& tiles, const std::string& run) const {
    tiles.Forget(QualifiedRun(project_, run));
  }
  const std::string& project() const { return project_; }
  // Says why there is no such run, if it is for the project's sake.
  Status Explained(Status status) const {
    if (status.code() != Code::kNotFound) return status;
    STATCOLLECT_RETURN_IF_ERROR(CheckExists("find the run"));
    if (project_ == kDefaultProject) return status;
    return {status.code(), status.message() + " (in project '" + project_ + "')"};
  }

 private:
  const query::QueryEngine& all_;
  const std::string project_, only_;
  const std::shared_ptr<const query::QueryEngine> engine_;
};

// Requests and responses live as long as gRPC's call, which outlasts the work.
class QueryService final : public v1::Query::CallbackService {
 public:
  QueryService(const query::QueryEngine& engine, const QueryLimits& limits, EventFeed* feed,
               RunFeed* runs)
      : engine_(engine),
        limits_(limits),
        feed_(feed),
        heat_tiles_(engine),
        pool_({.what = "query",
               .threads = limits.threads,
               .waiting_max = limits.waiting_max,
               .time_limit = limits.time_limit}),
        streams_({.what = "export", .threads = limits.streams, .waiting_max = limits.waiting_max}),
        captures_(
            {.what = "capture", .threads = limits.captures, .waiting_max = limits.waiting_max}),
        details_({.what = "show",
                  .threads = limits.details,
                  .waiting_max = limits.quick_waiting_max,
                  .time_limit = limits.time_limit}),
        quick_({.what = "query",
                .threads = 1,
                .waiting_max = limits.quick_waiting_max,
                .time_limit = limits.time_limit}) {
    SetMessageAllocatorFor_GetSeries(&series_messages_);
    const api::LiveLimits live{.followers_max = limits.followers_max,
                               .interval = limits.live_interval,
                               .beat = limits.live_beat};
    if (runs != nullptr) live_ = std::make_unique<api::LiveBoard>(engine, *runs, live);
  }

  ServerUnaryReactor* ListRuns(CallbackServerContext*, const v1::ListRunsRequest*,
                               v1::ListRunsResponse* response) override {
    return UnaryCall::Start(quick_, [of = Asked(engine_), response](const std::stop_token& stop) {
      STATCOLLECT_RETURN_IF_ERROR(of->Ask(query::ListRuns, {}, *response, stop));
      return response->runs().empty() ? of.CheckExists("runs") : Status::Ok();
    });
  }

#define STATCOLLECT_ANSWER_LEAF(Method, Response, pool)                                  \
  ServerUnaryReactor* Method(CallbackServerContext*, const v1::Method##Request* request, \
                             v1::Response* response) override {                          \
    return AnswerLeaf(*request, *response, query::Method, pool);                         \
  }
  STATCOLLECT_LEAF_QUERIES(STATCOLLECT_ANSWER_LEAF)
#undef STATCOLLECT_ANSWER_LEAF

  grpc::ServerWriteReactor<v1::DiffResponse>* Diff(CallbackServerContext*,
                                                   const v1::DiffRequest* request) override {
    return AnswerWithProgress<v1::DiffResponse>(*request, &query::QueryEngine::Diff);
  }

  grpc::ServerWriteReactor<v1::FollowEventsResponse>* FollowEvents(
      CallbackServerContext*, const v1::ListEventsRequest* request) override {
    auto wanted = FromWire(*request);
    if (wanted.ok() && feed_ == nullptr)
      wanted =
          Status(Code::kUnimplemented, "follow events: this collector does not report new events");
    if (wanted.ok() && feed_->followers() >= limits_.followers_max) {
      wanted = Status(Code::kResourceExhausted,
                      "follow events: " + std::to_string(limits_.followers_max) +
                          " do already; try again later");
    }
    const std::string& project = access::CurrentPrincipal().project;
    return api::FollowCall::Start(engine_.Of(project), project, quick_, feed_, std::move(wanted));
  }

  grpc::ServerWriteReactor<v1::FollowRunsResponse>* FollowRuns(
      CallbackServerContext*, const v1::FollowRunsRequest* request) override {
    return api::LiveCall::Start(live_.get(), access::CurrentPrincipal().project, *request);
  }

  ServerUnaryReactor* GetHeatMap(CallbackServerContext*, const v1::GetHeatMapRequest* request,
                                 v1::GetHeatMapResponse* response) override {
    return UnaryCall::Start(
        pool_, [this, of = Asked(engine_), request, response](const std::stop_token& stop) {
          auto tile = heat_tiles_.Get(*request, stop, of.project());
          if (!tile.ok()) return of.Explained(tile.status());
          response->set_tile(*std::move(tile));
          return Status::Ok();
        });
  }

  grpc::ServerWriteReactor<v1::ReadRecordsResponse>* ReadRecords(
      CallbackServerContext* context, const v1::ReadRecordsRequest* request) override {
    using Call = FlowCall<v1::ReadRecordsResponse>;
    const auto work = [this, of = Asked(engine_), request](const std::stop_token& stop,
                                                           const Call::Send& send) {
      STATCOLLECT_ASSIGN_OR_RETURN(const auto wanted, FromWire(*request));
      auto told = std::chrono::steady_clock::now();
      const auto take = [&](const query::RecordsPart& part) {
        v1::ReadRecordsResponse message;
        ToWire(part, message);
        const auto now = std::chrono::steady_clock::now();
        if (!message.has_records() && now - told < limits_.progress_interval) return Status::Ok();
        told = now;
        return send(std::move(message));
      };
      return of.Explained(of->Stream(
          [&](const auto& in) { return query::ReadRecords(in.store, wanted, take, in.stop); },
          stop));
    };
    return Call::Start(streams_, *context, pace(), work);
  }

  grpc::ServerWriteReactor<v1::SaveNoiseResponse>* SaveNoise(
      CallbackServerContext*, const v1::SaveNoiseRequest* request) override {
    using Call = StreamCall<v1::SaveNoiseResponse>;
    const auto work = [this, of = Asked(engine_), request](const std::stop_token& stop,
                                                           const Call::Send& send,
                                                           v1::SaveNoiseResponse& last) {
      STATCOLLECT_ASSIGN_OR_RETURN(const auto wanted, FromWire(*request));
      const auto progress = [&](const query::Progress& done) {
        v1::SaveNoiseResponse message;
        ToWire(done, *message.mutable_progress());
        send(std::move(message));
      };
      auto saved = of->SaveNoise(wanted, progress, stop);
      if (saved.ok()) query::ToWire(wanted.run, *saved, *last.mutable_report());
      of.ForgetTiles(heat_tiles_, wanted.run);
      return of.Explained(saved.status());
    };
    return Call::Start(pool_, limits_.progress_interval, work);
  }

  ServerUnaryReactor* DeleteNoise(CallbackServerContext*, const v1::DeleteNoiseRequest* request,
                                  v1::DeleteNoiseResponse* response) override {
    return UnaryCall::Start(
        pool_, [this, of = Asked(engine_), request, response](const std::stop_token& stop) {
          STATCOLLECT_RETURN_IF_ERROR(ValidateRunName(request->run()));
          of.ForgetTiles(heat_tiles_, request->run());
          return of.Explained(of->Ask(query::DeleteNoise, request->run(), *response, stop));
        });
  }

  grpc::ServerWriteReactor<v1::ReadCaptureResponse>* ReadCapture(
      CallbackServerContext* context, const v1::ReadCaptureRequest* request) override {
    using Call = FlowCall<v1::ReadCaptureResponse>;
    const auto work = [of = Asked(engine_), request](const std::stop_token& stop,
                                                     const Call::Send& send) {
      STATCOLLECT_ASSIGN_OR_RETURN(const auto wanted, FromWire(*request));
      const auto head = [&](const query::CaptureRow& row) {
        v1::ReadCaptureResponse message;
        query::ToWire(row, *message.mutable_capture());
        return send(std::move(message));
      };
      const auto data = [&](std::string bytes) {
        v1::ReadCaptureResponse message;
        message.set_data(std::move(bytes));
        return send(std::move(message));
      };
      return of.Explained(of->Stream(
          [&](const auto& in) { return query::ReadCapture(in.store, wanted, head, data, in.stop); },
          stop));
    };
    return Call::Start(captures_, *context, pace(), work);
  }

  grpc::ServerWriteReactor<v1::CheckRanksResponse>* CheckRanks(
      CallbackServerContext*, const v1::CheckRanksRequest* request) override {
    return AnswerWithProgress<v1::CheckRanksResponse>(*request, &query::QueryEngine::CheckRanks);
  }

 private:
  api::Pace pace() const {
    return {.patience = limits_.stream_patience,
            .bytes_per_second_min = limits_.stream_bytes_per_second_min};
  }
  template <typename WireRequest, typename Request, typename Response>
  ServerUnaryReactor* AnswerLeaf(const WireRequest& request, Response& response,
                                 query::Leaf<Request, Response>* leaf, WorkerPool& pool) {
    return UnaryCall::Start(
        pool, [of = Asked(engine_), &request, &response, leaf](const std::stop_token& stop) {
          STATCOLLECT_ASSIGN_OR_RETURN(const auto wanted, FromWire(request));
          return of.Explained(of->Ask(leaf, wanted, response, stop));
        });
  }
  // A question that FromWire, a method of the engine and ToWire answer, with progress before it;
  // `Message` holds either.
  template <typename Message, typename Request, typename Method>
  grpc::ServerWriteReactor<Message>* AnswerWithProgress(const Request& request, Method method) {
    using Call = StreamCall<Message>;
    const auto work = [of = Asked(engine_), &request, method](const std::stop_token& stop,
                                                              const typename Call::Send& send,
                                                              Message& last) {
      STATCOLLECT_ASSIGN_OR_RETURN(const auto wanted, FromWire(request));
      const auto progress = [&](const query::Progress& done) {
        Message message;
        ToWire(done, *message.mutable_progress());
        send(std::move(message));
      };
      const auto report = std::invoke(method, *of, wanted, progress, stop);
      if (report.ok()) ToWire(*report, *last.mutable_report());
      return of.Explained(report.status());
    };
    return Call::Start(pool_, limits_.progress_interval, work);
  }

  const query::QueryEngine& engine_;
  const QueryLimits limits_;
  EventFeed* const feed_;
  api::HeatTiles heat_tiles_;
  api::ArenaMessages<v1::GetSeriesRequest, v1::GetSeriesResponse> series_messages_;
  std::unique_ptr<api::LiveBoard> live_;
  // Each kind has its own, so that it waits only for its like.
  WorkerPool pool_, streams_, captures_, details_, quick_;
};

constexpr std::uint32_t kAuditRecords = 100, kAuditRecordsMax = 10'000;

// Names of other projects' runs are not for the caller.
void HideOthers(const std::string& project, RetentionStatus& retention) {
  std::erase_if(retention.next,
                [&](const auto& next) { return SplitRun(next.run).project != project; });
  std::erase_if(retention.kept, [&](const auto& run) { return SplitRun(run).project != project; });
  for (auto& next : retention.next) next.run = std::string(SplitRun(next.run).run);
  for (std::string& run : retention.kept) run = std::string(SplitRun(run).run);
}

class AdminService final : public v1::Admin::CallbackService {
 public:
  AdminService(CollectorControl& control, const query::QueryEngine& engine, AdminOptions options)
      : control_(control),
        engine_(engine),
        options_(std::move(options)),
        pool_({.what = "administration", .threads = 1, .waiting_max = 64}),
        slow_({.what = "checkpoint", .threads = 1, .waiting_max = 4}) {}

  ServerUnaryReactor* GetStatus(CallbackServerContext*, const v1::GetStatusRequest*,
                                v1::GetStatusResponse* response) override {
    return UnaryCall::Start(
        pool_, [this, only = access::CurrentPrincipal().only_project,
                project = access::CurrentPrincipal().project, response](const std::stop_token&) {
          CollectorStatus status = control_.GetStatus();
          if (!only.empty()) HideOthers(only, status.retention);
          ToWire(status, project, *response);
          return Status::Ok();
        });
  }

  ServerUnaryReactor* DeleteRun(CallbackServerContext*, const v1::DeleteRunRequest* request,
                                v1::DeleteRunResponse* response) override {
    return UnaryCall::Start(pool_, [this, project = access::CurrentPrincipal().project, request,
                                    response](const std::stop_token&) {
      STATCOLLECT_RETURN_IF_ERROR(ValidateRunName(request->run()));
      STATCOLLECT_ASSIGN_OR_RETURN(
          const auto deleted,
          control_.DeleteRun(QualifiedRun(project, request->run()), request->force()));
      response->set_records(deleted.records);
      response->set_attempts(deleted.attempts);
      return Status::Ok();
    });
  }

  ServerUnaryReactor* KeepRun(CallbackServerContext*, const v1::KeepRunRequest* request,
                              v1::KeepRunResponse*) override {
    return UnaryCall::Start(pool_, [this, project = access::CurrentPrincipal().project,
                                    request](const std::stop_token&) {
      STATCOLLECT_RETURN_IF_ERROR(ValidateRunName(request->run()));
      return control_.KeepRun(QualifiedRun(project, request->run()), request->keep());
    });
  }

  ServerUnaryReactor* RecordSteps(CallbackServerContext*, const v1::RecordStepsRequest* request,
                                  v1::RecordStepsResponse* response) override {
    return UnaryCall::Start(pool_, [this, project = access::CurrentPrincipal().project, request,
                                    response](const std::stop_token&) {
      STATCOLLECT_RETURN_IF_ERROR(ValidateRunName(request->run()));
      const auto told =
          control_.RecordSteps(QualifiedRun(project, request->run()), request->steps());
      if (told.ok()) response->set_ranks(*told);
      return told.status();
    });
  }

  ServerUnaryReactor* RequestCapture(CallbackServerContext*,
                                     const v1::RequestCaptureRequest* request,
                                     v1::RequestCaptureResponse* response) override {
    return UnaryCall::Start(pool_, [this, project = access::CurrentPrincipal().project, request,
                                    response](const std::stop_token& stop) {
      STATCOLLECT_ASSIGN_OR_RETURN(const auto spec, FromWire(*request));
      STATCOLLECT_ASSIGN_OR_RETURN(const auto ranks, query::RanksFromWire(request->ranks()));
      STATCOLLECT_RETURN_IF_ERROR(engine_.Of(project)->Stream(
          [&](const auto& in) { return query::CheckCanBeCaptured(in.store, request->run(), spec); },
          stop));
      STATCOLLECT_ASSIGN_OR_RETURN(
          const auto asked,
          control_.RequestCapture(QualifiedRun(project, request->run()), ranks, spec));
      response->set_request(asked.request);
      response->mutable_ranks()->Assign(asked.ranks.begin(), asked.ranks.end());
      response->set_told(asked.told);
      return Status::Ok();
    });
  }

  ServerUnaryReactor* Checkpoint(CallbackServerContext*, const v1::CheckpointRequest* request,
                                 v1::CheckpointResponse* response) override {
    return UnaryCall::Start(slow_, [this, request, response](const std::stop_token&) {
      STATCOLLECT_ASSIGN_OR_RETURN(
          const auto target, api::CheckpointTarget(request->directory(), options_.checkpoint_root,
                                                   options_.any_path()));
      STATCOLLECT_ASSIGN_OR_RETURN(const auto made, control_.Checkpoint(target));
      response->set_directory(made.directory);
      response->set_files(made.files);
      response->set_bytes(made.bytes);
      response->set_linked(made.linked);
      return Status::Ok();
    });
  }

  ServerUnaryReactor* ListAudit(CallbackServerContext*, const v1::ListAuditRequest* request,
                                v1::ListAuditResponse* response) override {
    return UnaryCall::Start(slow_, [this, only = access::CurrentPrincipal().only_project, request,
                                    response](const std::stop_token&) {
      if (options_.audit == nullptr)
        return Status(Code::kUnimplemented, "audit: this collector keeps no audit log");
      if (request->limit() > kAuditRecordsMax) {
        return Status(Code::kInvalidArgument,
                      "audit: limit: found " + std::to_string(request->limit()) + "; expected 1.." +
                          std::to_string(kAuditRecordsMax));
      }
      STATCOLLECT_RETURN_IF_ERROR(access::CheckOutcome(request->outcome()));
      const auto found =
          options_.audit->Find({.since_unix_nanos = request->since_unix_nanos(),
                                .principal = request->principal(),
                                .method = request->method(),
                                .outcome = request->outcome(),
                                .only_project = only,
                                .limit = request->limit() > 0 ? request->limit() : kAuditRecords});
      ToWire(found, *response);
      return Status::Ok();
    });
  }

 private:
  CollectorControl& control_;
  const query::QueryEngine& engine_;
  const AdminOptions options_;
  WorkerPool pool_;
  WorkerPool slow_;  // what copies or reads much
};

}  // namespace

std::unique_ptr<grpc::Service> MakeQueryService(const query::QueryEngine& engine,
                                                const QueryLimits& limits, EventFeed* feed,
                                                RunFeed* runs) {
  return std::make_unique<QueryService>(engine, limits, feed, runs);
}

std::unique_ptr<grpc::Service> MakeAdminService(CollectorControl& control,
                                                const query::QueryEngine& engine,
                                                AdminOptions options) {
  return std::make_unique<AdminService>(control, engine, std::move(options));
}

}  // namespace statcollect
