// statcollectord: composition root. Owns, in order of construction: store, collector (ingest),
// queries, gRPC server, HTTP listener; takes them down in reverse.

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <memory>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include <malloc.h>
#include <sys/stat.h>

#include <grpc/support/log.h>
#include <grpcpp/impl/codegen/service_type.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>
#include <boost/asio/io_context.hpp>
#include <boost/asio/signal_set.hpp>

#include "common/clock.h"
#include "common/data_folder.h"
#include "common/failpoint.h"
#include "common/thread_annotations.h"
#include "common/unix_address.h"
#include "proto/convert.h"
#include "server/access/access.h"
#include "server/alarms/alarms.h"
#include "server/api/guard.h"
#include "server/api/http/api.h"
#include "server/api/http/gate.h"
#include "server/api/http/pages.h"
#include "server/api/http/routes.h"
#include "server/api/http/session.h"
#include "server/api/login_service.h"
#include "server/api/services.h"
#include "server/api/transfer_service.h"
#include "server/control/alarm_message.h"
#include "server/control/event_feed.h"
#include "server/control/run_feed.h"
#include "server/control/webhook.h"
#include "server/daemon/callback_heartbeat.h"
#include "server/daemon/certificates.h"
#include "server/daemon/config.h"
#include "server/daemon/descriptors.h"
#include "server/daemon/grpc_listener.h"
#include "server/daemon/grpc_tls.h"
#include "server/daemon/http_names.h"
#include "server/daemon/last_resort.h"
#include "server/daemon/open_access.h"
#include "server/daemon/say_error.h"
#include "server/daemon/token_command.h"
#include "server/daemon/users.h"
#include "server/http/server.h"
#include "server/ingest/grpc_service.h"
#include "server/ingest/ingest_server.h"
#include "server/page/page.h"
#include "server/query/query.h"
#include "server/store/clickhouse/clickhouse_store.h"
#include "server/store/rocksdb/rocksdb_store.h"
#include "server/store/shared_clock.h"
#include "statcollect/v1/admin.pb.h"
#include "statcollect/v1/ingest.pb.h"
#include "statcollect/v1/login.pb.h"
#include "statcollect/v1/query.pb.h"
#include "statcollect/v1/transfer.pb.h"

namespace statcollect {
namespace {

constexpr int kExitCannotStart = 2;

void SetUpLog(const DaemonConfig& config) {
  auto logger = std::make_shared<spdlog::logger>("statcollectord",
                                                 std::make_shared<spdlog::sinks::stderr_sink_mt>());
  logger->set_pattern("%Y-%m-%dT%H:%M:%S.%e%z %l %v");
  logger->set_level(spdlog::level::from_str(config.log_level));
  logger->flush_on(spdlog::level::info);
  spdlog::set_default_logger(logger);
  // Whatever matters to an operator is in the statuses of the calls.
  gpr_set_log_function([](gpr_log_func_args* line) { spdlog::debug("gRPC: {}", line->message); });
}

int Fail(const std::string& message) {
  SayError("statcollectord", message);
  return kExitCannotStart;
}

// What one connection or all of them may take.
void LimitConnections(const DaemonConfig& config, grpc::ServerBuilder& builder) {
  grpc::ResourceQuota quota("statcollectord");
  quota.Resize(config.grpc_memory_mib << 20);
  builder.SetResourceQuota(quota);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, 64);  // an agent has one
  builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, 10'000);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS, 300'000);  // without a call
}

struct GrpcServer {
  std::unique_ptr<grpc::Server> server;
  std::unique_ptr<GrpcListener> listener, socket;  // stop first; null: not wanted
};

Status OpenListeners(const DaemonConfig& config, const ListenerLimits& limits, GrpcServer& into) {
  const auto log = [](const std::string& line) { spdlog::warn("{}", line); };
  const auto take = [](auto opened, std::unique_ptr<GrpcListener>& place) -> Status {
    if (!opened.ok()) return opened.status();
    place = *std::move(opened);
    return Status::Ok();
  };
  if (config.listens_tcp)
    STATCOLLECT_RETURN_IF_ERROR(
        take(GrpcListener::Open(config.listen, limits, log), into.listener));
  if (config.socket.path.empty()) return Status::Ok();
  return take(GrpcListener::OpenSocket(config.socket, limits, log), into.socket);
}

Result<GrpcServer> StartGrpc(const DaemonConfig& config, const DescriptorBudget& budget,
                             api::Guard& guard, const tls::Reloader* certificates,
                             const std::vector<grpc::Service*>& services) {
  grpc::ServerBuilder builder;
  guard.AddAudit(builder);
  LimitConnections(config, builder);
  // Agents ping every 10 s, also while idle; half-open connections are found within 30 s.
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, 10'000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 10'000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 5'000);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PING_STRIKES, 0);
  // Limits how much a stream may send ahead of its reader. With hundreds of streams, gRPC's own
  // bandwidth estimate led to a gigabyte of buffers and seconds of waiting in them.
  builder.AddChannelArgument(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 256 << 10);
  LimitMessages(builder);
  GrpcServer started;
  const ListenerLimits limits{.connections_max = config.connections_max,
                              .descriptors_end = budget.connections_end};
  STATCOLLECT_RETURN_IF_ERROR(OpenListeners(config, limits, started));
  const auto accept = [&](bool wanted,
                          const std::shared_ptr<grpc::ServerCredentials>& credentials) {
    return wanted ? builder.experimental().AddExternalConnectionAcceptor(
                        grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD,
                        credentials)
                  : nullptr;
  };
  auto tcp = accept(started.listener != nullptr, certificates != nullptr
                                                     ? MakeTlsCredentials(*certificates)
                                                     : grpc::InsecureServerCredentials());
  auto local = accept(started.socket != nullptr, grpc::InsecureServerCredentials());
  for (grpc::Service* service : services) builder.RegisterService(service);
  started.server = builder.BuildAndStart();
  if (!started.server) return Status(Code::kInternal, "start gRPC: the server could not be built");
  if (tcp) started.listener->Start(std::move(tcp));
  if (local) started.socket->Start(std::move(local));
  return started;
}

void StopGrpc(const GrpcServer& grpc) {
  for (GrpcListener* listener : {grpc.listener.get(), grpc.socket.get()}) {
    if (listener != nullptr) listener->Stop();
  }
  grpc.server->Shutdown(std::chrono::system_clock::now() + std::chrono::seconds(5));
  grpc.server->Wait();
}

// "127.0.0.1:7433", "unix:/run/a.sock", or both; `separator` between them.
std::string AddressesOf(const DaemonConfig& config, const GrpcServer& grpc, const char* separator) {
  const std::string tcp = grpc.listener ? grpc.listener->endpoint().ToString() : "";
  const std::string local = grpc.socket ? std::string(kUnixScheme) + config.socket.path : "";
  return tcp + (tcp.empty() || local.empty() ? "" : separator) + local;
}

// Says in the data folder where the collector answers, for statctl. Other users of the machine may
// read it as far as the folder lets them.
class AddressFile {
 public:
  AddressFile(const DaemonConfig& config, const GrpcServer& grpc)
      : path_(config.data_dir + '/' + kAddressFile) {
    const std::string all = AddressesOf(config, grpc, "\n");
    const Status written = tls::ReplaceFile(path_, all.substr(0, all.find('\n')) + '\n', 0600);
    if (!written.ok())
      spdlog::warn("statctl will not find this collector by its folder: {}", written.message());
  }
  ~AddressFile() { (void)unlink(path_.c_str()); }
  AddressFile(const AddressFile&) = delete;
  AddressFile& operator=(const AddressFile&) = delete;

 private:
  const std::string path_;
};

void PrintReady(const DaemonConfig& config, const Store& store, const GrpcServer& grpc,
                const HttpServer* http) {
  const std::string http_text = http != nullptr ? http->endpoint().ToString() : "off";
  const std::string data =
      config.UsesClickHouse() ? Describe(*ParseClickHouseDsn(config.store)) : config.data_dir;
  const std::string all = AddressesOf(config, grpc, " and ");
  std::printf(
      "statcollectord %s ready: grpc %s, http %s, data %s (%s); try: statctl --collector %s runs\n",
      STATCOLLECT_VERSION, all.c_str(), http_text.c_str(), data.c_str(),
      store.fsync() ? "fsync" : "process", all.substr(0, all.find(" and ")).c_str());
  std::fflush(stdout);
}

// SIGTERM and SIGINT, taken by a thread of its own, so that nothing that the collector does delays
// them: the first one stops `io` and leaves the process kStopGrace to end, a second one ends it at
// once, also while it drains.
class Signals {
 public:
  explicit Signals(boost::asio::io_context& io) : signals_(own_, SIGTERM, SIGINT) {
    signals_.async_wait([this, &io](const boost::system::error_code& error, int first) {
      if (error) return;
      EndWithin(kStopGrace);
      spdlog::info("signal {}: draining; a second one ends at once", first);
      signals_.async_wait([](const boost::system::error_code& again, int second) {
        if (!again) std::_Exit(128 + second);
      });
      io.stop();
    });
    thread_ = std::thread([this] { own_.run(); });
  }
  ~Signals() {
    own_.stop();
    thread_.join();
  }
  Signals(const Signals&) = delete;
  Signals& operator=(const Signals&) = delete;

 private:
  boost::asio::io_context own_;
  boost::asio::signal_set signals_;
  std::thread thread_;
};

// Cancels running HTTP queries; their callers get an answer that says so.
void EndHttp(boost::asio::io_context& io, HttpServer& http, api::HttpApi& api) {
  http.Stop();
  io.restart();
  std::thread serving([&] { io.run(); });
  api.Close();
  io.stop();
  serving.join();
}

// Batches come and go at hundreds of megabytes a second: memory that goes back to the kernel in
// between has to be cleared by it again, which took an eighth of the processor's time.
void KeepFreedMemory() {
#if defined(__GLIBC__)
  mallopt(M_MMAP_THRESHOLD, 32 << 20);
  mallopt(M_TRIM_THRESHOLD, 256 << 20);
  // A thread's heap is otherwise made accessible by a system call for nearly every block of 10 KB,
  // while other threads' page faults wait. Nothing is taken from the kernel before it is used.
  mallopt(M_TOP_PAD, 64 << 20);
#endif
}

// Tells the ingest of alarms while it exists: it is made after the alarms and destroyed before
// them.
class AlarmedIngest {
 public:
  void Set(IngestServer* ingest) {
    MutexLock lock(mutex_);
    ingest_ = ingest;
  }
  // Sets it, until it is destroyed.
  struct Scope {
    Scope(AlarmedIngest& of, IngestServer& ingest) : alarmed(of) { alarmed.Set(&ingest); }
    ~Scope() { alarmed.Set(nullptr); }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;
    AlarmedIngest& alarmed;
  };
  void Tell(const FeedEvent& alarm) {
    MutexLock lock(mutex_);
    if (ingest_ != nullptr) ingest_->RequestFull(alarm.run, alarm.event.step);
  }

 private:
  Mutex mutex_;
  IngestServer* ingest_ STATCOLLECT_GUARDED_BY(mutex_) = nullptr;
};

alarms::AlarmsOptions MakeAlarmsOptions(const DaemonConfig& config, EventFeed& feed,
                                        Webhook* webhook, AlarmedIngest& ingest) {
  alarms::AlarmsOptions options{.settings = config.alarms,
                                .feed = &feed,
                                .log = [](const std::string& line) { spdlog::info("{}", line); }};
  options.notify = [webhook, &ingest](const FeedEvent& alarm) {
    if (webhook != nullptr) webhook->Post(AlarmMessage(alarm));
    ingest.Tell(alarm);
  };
  return options;
}

AlarmStatus StatusOf(alarms::Alarms& alarms, const Webhook* webhook, const DaemonConfig& config) {
  AlarmStatus status = alarms.GetStatus();
  if (webhook == nullptr) return status;
  const WebhookCounters counters = webhook->counters();
  status.webhook = ParseWebhook(config.alarm_webhook).value().shown;
  status.webhook_sent = counters.sent;
  status.webhook_failed = counters.failed;
  status.webhook_dropped = counters.dropped;
  return status;
}

volatile std::sig_atomic_t restore_stopped = 0;

// The first SIGTERM or SIGINT ends it without leaving anything behind, a second one the process.
Status Restore(const DaemonConfig& config, RocksDbStoreOptions options) {
  struct sigaction stop {};
  stop.sa_handler = [](int) { restore_stopped = 1; };
  stop.sa_flags = static_cast<int>(SA_RESETHAND | SA_RESTART);
  struct sigaction term {
  }, interrupt{};
  sigaction(SIGTERM, &stop, &term);
  sigaction(SIGINT, &stop, &interrupt);
  options.stopped = [] { return restore_stopped != 0; };
  const Status restored = RestoreCheckpoint(config.restore_from, config.data_dir, options);
  sigaction(SIGTERM, &term, nullptr);
  sigaction(SIGINT, &interrupt, nullptr);
  return restored;
}

// What is made in it is for this user alone (umask), but a folder that was there keeps its
// permissions.
void WarnOfOpenFolder(const std::string& folder) {
  struct stat found {};
  constexpr mode_t kOthers = 077;
  if (stat(folder.c_str(), &found) != 0 || (found.st_mode & kOthers) == 0) return;
  spdlog::warn(
      "data directory {}: found permissions {:o}, so other users may look into it; expected 700; "
      "chmod 700 {}",
      folder, found.st_mode & 07777, folder);
}

Status MakeFolder(const std::string& directory) {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (std::filesystem::is_directory(directory, error)) return Status::Ok();
  return {Code::kPermissionDenied,
          "make folder '" + directory +
              "': " + (error ? error.message() : "something else has that name") +
              "; expected a folder this user may write; choose another with --data-dir"};
}

// The store of --store or --data-dir, after the restore that --restore-from asks for.
Result<std::unique_ptr<Store>> OpenStore(const DaemonConfig& config,
                                         const DescriptorBudget& budget) {
  const RocksDbStoreOptions options{
      .fsync = config.fsync,
      .memtable_bytes = STATCOLLECT_TEST_SETTING("STATCOLLECT_MEMTABLE_BYTES",
                                                 RocksDbStoreOptions().memtable_bytes),
      .accept_loss = config.accept_loss,
      .until_unused = config.until_unused,
      .open_files_max = budget.store_files,
      .log = [](const std::string& line) { spdlog::info("store: {}", line); }};
  if (config.UsesClickHouse()) {
    STATCOLLECT_RETURN_IF_ERROR(
        MakeFolder(config.data_dir));  // of tokens, certificates and the log of calls
    WarnOfOpenFolder(config.data_dir);
    return OpenClickHouseStore(config.store, {.log = options.log});
  }
  if (!config.restore_from.empty()) STATCOLLECT_RETURN_IF_ERROR(Restore(config, options));
  auto store = OpenRocksDbStore(config.data_dir, options);
  if (store.ok()) WarnOfOpenFolder(config.data_dir);
  return store;
}

// Null where this collector is the only one that writes to its store.
std::unique_ptr<const Clock> MakeSharedClock(const DaemonConfig& config, FleetStore& store,
                                             const Clock& own) {
  if (!config.UsesClickHouse()) return nullptr;
  return std::make_unique<SharedClock>(store, own,
                                       [](const std::string& line) { spdlog::warn("{}", line); });
}

// Null without --alarm-webhook.
std::unique_ptr<Webhook> MakeWebhook(const DaemonConfig& config) {
  if (config.alarm_webhook.empty()) return nullptr;
  return std::make_unique<Webhook>(
      ParseWebhook(config.alarm_webhook).value(),
      WebhookOptions{.ca_file = config.alarm_webhook_ca,
                     .secret_file = config.alarm_webhook_secret_file,
                     .allowed = config.alarm_webhook_allow,
                     .log = [](const std::string& line) { spdlog::warn("{}", line); }});
}

AccessStatus StatusOf(access::AccessControl& access) {
  const access::AccessControl::Counters counters = access.counters();
  return {.on = access.on(),
          .unauthenticated = counters.unauthenticated,
          .permission_denied = counters.permission_denied,
          .streams_refused = counters.streams_refused,
          .audit_lost = access.audit().lost()};
}

// All of them must outlive the server that gets the options.
CollectorOptions MakeIngestOptions(const DaemonConfig& config, alarms::Alarms& alarms,
                                   const Webhook* webhook, access::AccessControl& access,
                                   RunFeed& runs) {
  return {.version = STATCOLLECT_VERSION,
          .data_dir = config.data_dir,
          .disk_free_bytes_min = config.disk_free_min_mib << 20,
          .streams_max = config.connections_max,
          .retention = {.age_max = config.retention,
                        .disk_bytes_max = config.max_disk.bytes,
                        .disk_percent_max = config.max_disk.percent},
          .committed =
              [&alarms, &runs](CommittedBatch batch) {
                runs.Changed(batch.attempt.run);
                alarms.Take(std::move(batch));
              },
          .alarm_status = [&alarms, &config, webhook] { return StatusOf(alarms, webhook, config); },
          .access_status = [&access] { return StatusOf(access); },
          .rates = {.each = config.token_rate_max, .in_all = config.ingest_rate_max},
          .project_limits = config.project_limits,
          .run_changed = [&runs](const std::string& run) { runs.Changed(run); },
          .log = [](const std::string& line) { spdlog::info("{}", line); }};
}

// The HTTP listener and what answers below /api; both null with --http off.
struct HttpFront {
  std::unique_ptr<ForeignCheck> foreign;
  std::unique_ptr<api::HttpApi> api;
  std::unique_ptr<HttpServer> server;
};

// Null without TLS.
std::unique_ptr<TlsContexts> MakeHttps(const DaemonConfig& config,
                                       const tls::Reloader* certificates) {
  return certificates == nullptr ? nullptr
                                 : std::make_unique<TlsContexts>(*certificates, config.tls_1_2);
}

Result<HttpFront> StartHttp(const DaemonConfig& config, boost::asio::io_context& io,
                            IngestServer& collector, grpc::Server& grpc,
                            const DescriptorBudget& budget, access::AccessControl& access,
                            const tls::Reloader* certificates) {
  HttpFront front;
  if (!config.http) return front;
  front.foreign = std::make_unique<ForeignCheck>(MakeForeignRules(config, certificates));
  front.api = std::make_unique<api::HttpApi>(grpc);
  const HttpService serve = [api = front.api.get()](HttpRequest request,
                                                    const std::shared_ptr<HttpExchange>& exchange) {
    api->Serve(std::move(request), exchange);
  };
  const HttpService page = MakePageService();
  const HttpLimits limits{.connections_max = config.http_connections_max,
                          .descriptors_end = budget.connections_end};
  front.server = std::make_unique<HttpServer>(
      io, MakePages(collector, front.foreign.get()), limits,
      HttpServices{{std::string(api::kHttpPrefix), serve},
                   {std::string(kPagePath), page},
                   {std::string(kPageAssetsPrefix), page},
                   {std::string(api::kSessionPrefix), api::MakeSessionService(access)}},
      api::MakeHttpGate(access, front.foreign.get()), MakeHttps(config, certificates));
  STATCOLLECT_RETURN_IF_ERROR(front.server->Start(*config.http));
  collector.SetHttpAddress(front.server->endpoint().ToString());
  return front;
}

// A client may name a path of this machine only where every client is its user.
AdminOptions MakeAdminOptions(const DaemonConfig& config, access::AccessControl& access) {
  const bool local = config.listen.IsLoopback() && (!config.http || config.http->IsLoopback());
  return {.audit = &access.audit(),
          .checkpoint_root = config.checkpoint_root,
          .any_path = [local, &access] { return local && !access.on(); }};
}

// The services, each behind the check.
struct GuardedServices {
  std::unique_ptr<grpc::Service> ingest, query, admin, login, transfer;
  std::vector<grpc::Service*> All() const {
    return {ingest.get(), query.get(), admin.get(), login.get(), transfer.get()};
  }
};

GuardedServices GuardServices(api::Guard& guard, grpc::Service& ingest, grpc::Service& query,
                              grpc::Service& admin, grpc::Service& login, grpc::Service& transfer) {
  const auto wrap = [&](const google::protobuf::FileDescriptor& file, const char* name,
                        grpc::Service& service) {
    return guard.Wrap(*file.FindServiceByName(name), service);
  };
  return {.ingest = wrap(*v1::AgentMessage::descriptor()->file(), "Ingest", ingest),
          .query = wrap(*v1::ListRunsRequest::descriptor()->file(), "Query", query),
          .admin = wrap(*v1::GetStatusRequest::descriptor()->file(), "Admin", admin),
          .login = wrap(*v1::CreateLinkRequest::descriptor()->file(), "Login", login),
          .transfer = wrap(*v1::DescribeStoreRequest::descriptor()->file(), "Transfer", transfer)};
}

// What holds for the whole process, before anything is opened.
void SetUpProcess(const DaemonConfig& config) {
  KeepFreedMemory();
  SetUpLog(config);
  std::signal(SIGPIPE, SIG_IGN);
  umask(077);  // what is stored is for this user only
  if (!config.tls_1_2) RequireTls13();
}

// With --until-unused: ends `io` when no client or agent has used the collector for a while.
// Otherwise null.
Result<std::unique_ptr<Users>> WatchUsers(const DaemonConfig& config, boost::asio::io_context& io,
                                          IngestServer& collector) {
  if (!config.until_unused) return std::unique_ptr<Users>();
  return Users::Watch(io, config.data_dir,
                      [&collector] { return collector.GetStatus().streams_open > 0; });
}

// What ends after the first signal, in this order.
void WindDown(boost::asio::io_context& io, Store& store, const HttpFront& http,
              IngestServer& collector, alarms::Alarms& alarms, EventFeed& feed, RunFeed& runs,
              const GrpcServer& grpc) {
  store.BeginStop();
  NowWaitingFor("answers over HTTP");
  if (http.server) EndHttp(io, *http.server, *http.api);
  STATCOLLECT_FAILPOINT("stop.before_drain");
  NowWaitingFor("records that had arrived to be written");
  collector.Drain();
  NowWaitingFor("alarms");
  alarms.Drain();
  feed.Close();
  runs.Close();
  STATCOLLECT_FAILPOINT("stop.drained");
  NowWaitingFor("calls, such as queries, to end");
  StopGrpc(grpc);
  NowWaitingFor("queries and the store to end");
  spdlog::info("drained; bye");
}

int Run(const DaemonConfig& config) {
  SetUpProcess(config);
  const auto warn = [](const std::string& line) { spdlog::warn("{}", line); };
  const DescriptorBudget budget = TakeDescriptors(warn);
  auto store = OpenStore(config, budget);
  if (!store.ok()) return Fail(store.status().message());
  STATCOLLECT_FAILPOINT("start.store_opened");
  const auto certificates = OpenCertificates(config);
  if (!certificates.ok()) return Fail(certificates.status().message());
  const SystemClock own_clock;
  const std::unique_ptr<const Clock> shared_clock = MakeSharedClock(config, **store, own_clock);
  const Clock& clock = shared_clock != nullptr ? *shared_clock : own_clock;
  access::AuditLog audit(config.data_dir + "/audit.jsonl", own_clock, warn);
  const auto access = OpenAccess(config, own_clock, audit);
  if (!access.ok()) return Fail(access.status().message());
  boost::asio::io_context io;
  const std::unique_ptr<Webhook> webhook = MakeWebhook(config);
  RunFeed runs;
  EventFeed feed(&runs);
  AlarmedIngest alarmed;
  alarms::Alarms alarms(**store, **store, clock,
                        MakeAlarmsOptions(config, feed, webhook.get(), alarmed));
  IngestServer collector(**store, clock,
                         MakeIngestOptions(config, alarms, webhook.get(), **access, runs));
  const AlarmedIngest::Scope alarmed_scope(alarmed, collector);
  query::QueryEngine engine(
      **store,
      [&](AttemptId attempt, std::uint32_t rank) { return collector.IsStreamOpen(attempt, rank); },
      [&](AttemptId attempt, std::uint32_t rank) { return collector.MayComeBack(attempt, rank); },
      config.query_scan_bytes_max);
  const auto query_service =
      MakeQueryService(engine, {.threads = config.query_threads}, &feed, &runs);
  const auto admin_service =
      MakeAdminService(collector, engine, MakeAdminOptions(config, **access));
  api::Guard guard(**access, config.token_streams_max);
  const auto login_service = api::MakeLoginService(
      **access, [&collector] { return collector.http_address(); }, *certificates != nullptr);
  const auto transfer_service = api::MakeTransferService(**store, collector.copies());
  const GuardedServices guarded = GuardServices(guard, *collector.service(), *query_service,
                                                *admin_service, *login_service, *transfer_service);
  auto grpc = StartGrpc(config, budget, guard, certificates->get(), guarded.All());
  if (!grpc.ok()) return Fail(grpc.status().message());
  const std::string addresses = AddressesOf(config, *grpc, " ");
  collector.SetGrpcAddress(addresses.substr(0, addresses.find(' ')));
  const auto http =
      StartHttp(config, io, collector, *grpc->server, budget, **access, certificates->get());
  if (!http.ok()) return Fail(http.status().message());

  const auto work = boost::asio::make_work_guard(io);  // without --http, too
  const Signals signals(io);  // before the ready line: who reads that may send one at once
  PrintClientVariables(config, grpc->listener ? &grpc->listener->endpoint() : nullptr);
  const AddressFile address(config, *grpc);
  const auto users = WatchUsers(config, io, collector);
  if (!users.ok()) return Fail(users.status().message());
  PrintReady(config, **store, *grpc, http->server.get());
  const CallbackHeartbeat heartbeat(io);
  io.run();
  WindDown(io, **store, *http, collector, alarms, feed, runs, *grpc);
  return 0;
}

}  // namespace
}  // namespace statcollect

int main(int argc, char** argv) {
  const std::string_view command = argc > 1 ? argv[1] : "";
  if (command == "token") return statcollect::RunTokenCommand(argc - 1, argv + 1);
  if (command == "tls") return statcollect::RunTlsCommand(argc - 1, argv + 1);
  const auto parsed = statcollect::ParseCommandLine(argc, argv, STATCOLLECT_VERSION);
  if (parsed.exit_code) {
    (*parsed.exit_code == 0 ? std::cout : std::cerr) << parsed.text;
    return *parsed.exit_code;
  }
  try {
    return statcollect::Run(parsed.config);
  } catch (const std::exception& failure) {
    return statcollect::Fail(failure.what());
  }
}
