#include "server/ingest/ingest_server.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

namespace statcollect {
namespace {

constexpr std::chrono::milliseconds kTickMax{1000};
constexpr std::chrono::milliseconds kRetentionTick{2000};

}  // namespace

IngestServer::IngestServer(Store& store, const Clock& clock, const CollectorOptions& options)
    : store_(store),
      clock_(clock),
      options_(options),
      start_(clock.Now()),
      start_unix_nanos_(clock.UnixNanos()),
      memory_(options.decoded_bytes_max, store.parts()),
      definitions_(options.definition_bytes_max),
      rates_(options.rates),
      quotas_(store, clock, options.project_limits),
      committer_(store, clock,
                 {.queue_bytes_max = options.queue_bytes_max,
                  .disk_free_bytes_min = options.disk_free_bytes_min}),
      purger_(store, options.log),
      registry_(
          store, clock, committer_, [this] { purger_.Wake(); }, options.run_changed),
      service_(MakeIngestService(
          {.reader = store,
           .writer = store,
           .clock = clock,
           .registry = registry_,
           .committer = committer_,
           .counters = counters_,
           .admit =
               [this](const std::string& run, std::uint32_t rank, std::function<void()> job) {
                 workers_[store_.PartOf(rank)]->Post(AdmissionKey(run, rank), std::move(job));
               },
           .memory = memory_,
           .definitions = definitions_,
           .streams_max = options.streams_max,
           .rates = rates_.any() ? &rates_ : nullptr,
           .quotas = &quotas_,
           .committed = options.committed})),
      retention_(store, clock, registry_, options.retention, options.log),
      facts_(store, clock, committer_) {
  StartWorkers();
  if (options_.retention.enabled()) {
    retention_worker_ =
        std::make_unique<AdmissionWorker>(kRetentionTick, [this] { retention_.Tick(); });
  }
}

// A store that can recover does, also when nobody asks. One that does not answer holds up the
// hellos of its own part only.
void IngestServer::StartWorkers() {
  const auto tick = std::clamp(options_.hello_timeout / 4, std::chrono::milliseconds(1), kTickMax);
  for (std::size_t part = 0; part < store_.parts(); ++part) {
    workers_.push_back(std::make_unique<AdmissionWorker>(
        tick,
        [this, part] {
          if (part == 0) {
            service_->CheckHellos(options_.hello_timeout);
            quotas_.Tick();
          }
          (void)committer_.AdmissionOf(part);
        },
        store_.part(part).hellos_at_once()));
  }
}

IngestServer::~IngestServer() { Drain(); }

void IngestServer::Drain() {
  draining_ = true;
  purger_.RequestStop();
  if (retention_worker_) retention_worker_->Stop();
  service_->BeginDrain();
  for (const auto& worker : workers_) worker->Stop();
  committer_.Drain();
  service_->AwaitStreams(options_.drain_timeout);
  memory_.Stop();
  purger_.Stop();
}

CollectorStatus IngestServer::GetStatus() {
  CollectorStatus status;
  StoreFacts::Facts facts = facts_.Get();
  status.version = options_.version;
  status.pid = ::getpid();
  status.start_unix_nanos = start_unix_nanos_;
  status.uptime_seconds =
      std::chrono::duration_cast<std::chrono::seconds>(clock_.Now() - start_).count();
  status.data_dir = options_.data_dir;
  status.fsync = store_.fsync();
  status.state = State(facts.admission);
  status.runs = facts.runs;
  status.streams_open = registry_.OpenStreams();
  status.streams_total = counters_.streams;
  status.batches_total = counters_.batches;
  status.records_total = counters_.records;
  status.bytes_total = counters_.bytes;
  status.duplicate_records_total = counters_.duplicate_records;
  status.rejected_batches_total = counters_.rejected_batches;
  status.commits_total = committer_.commits();
  status.agents_dropped_total = counters_.agents_dropped;
  status.dropped_by_cause = std::move(facts.dropped);
  const CommitBacklog backlog = committer_.Backlog();
  status.backlog_records = backlog.records;
  status.backlog_bytes = backlog.bytes;
  status.backlog_oldest_millis = backlog.oldest.count();
  status.retention = retention_.status();
  status.retention.kept.assign(facts.kept.begin(), facts.kept.end());
  if (options_.alarm_status) status.alarms = options_.alarm_status();
  if (options_.access_status) status.access = options_.access_status();
  status.access.throttled_millis = rates_.waited_millis();
  status.access.quota_refused = quotas_.refused();
  status.projects_full = quotas_.full();
  for (const auto& [project, use] : quotas_.uses())
    status.project_disk[project] = {.bytes = use.bytes, .bytes_max = use.bytes_max};
  {
    MutexLock lock(address_mutex_);
    status.http_address = http_address_;
    status.grpc_address = grpc_address_;
  }
  status.disk_bytes = facts.disk_bytes;
  status.disk_free_bytes = facts.disk_free_bytes;
  return status;
}

std::string IngestServer::State(const Status& admission) const {
  if (draining_) return "draining";
  return admission.ok() ? "ready" : "read_only: " + admission.message();
}

Result<DeletedRun> IngestServer::DeleteRun(const std::string& run, bool force) {
  return registry_.DeleteRun(run, force);
}

Status IngestServer::KeepRun(const std::string& run, bool keep) {
  const Status changed = registry_.KeepRun(run, keep);
  facts_.ForgetCensus();  // the next status says so
  return changed;
}

Result<MadeCheckpoint> IngestServer::Checkpoint(const std::string& directory) {
  STATCOLLECT_ASSIGN_OR_RETURN(auto made, store_.Checkpoint(directory));
  return MadeCheckpoint{
      .directory = made.directory, .files = made.files, .bytes = made.bytes, .linked = made.linked};
}

bool IngestServer::IsStreamOpen(std::uint32_t attempt, std::uint32_t rank) {
  return registry_.IsOpen(attempt, rank);
}

}  // namespace statcollect
