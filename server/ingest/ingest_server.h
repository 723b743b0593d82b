// The writing half of the collector: owns the registry, the committer and the Ingest service, and
// reports their status.
//
// Thread-safe. Must outlive the grpc::Server with which its service is registered; store and clock
// must outlive it.
#ifndef STATCOLLECT_SERVER_INGEST_INGEST_SERVER_H_
#define STATCOLLECT_SERVER_INGEST_INGEST_SERVER_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/clock.h"
#include "common/thread_annotations.h"
#include "server/control/control.h"
#include "server/control/project_limits.h"
#include "server/ingest/admission_worker.h"
#include "server/ingest/byte_rates.h"
#include "server/ingest/committer.h"
#include "server/ingest/counters.h"
#include "server/ingest/definition_budget.h"
#include "server/ingest/grpc_service.h"
#include "server/ingest/memory_gate.h"
#include "server/ingest/project_quotas.h"
#include "server/ingest/purger.h"
#include "server/ingest/registry.h"
#include "server/ingest/retention.h"
#include "server/ingest/store_facts.h"
#include "server/store/store.h"
#include "server/transfer/run_copies.h"

namespace statcollect {

struct CollectorOptions {
  std::string version;
  std::string data_dir;
  std::uint64_t disk_free_bytes_min = std::uint64_t{64} << 20;  // below: records are refused
  // Of batches in memory, decoded: queued for one write, and those with what waits for its turn.
  std::size_t queue_bytes_max = std::size_t{128} << 20;
  std::size_t decoded_bytes_max = std::size_t{256} << 20;
  std::uint64_t definition_bytes_max =
      0;                           // of all connected ranks; 0: half of the machine's memory
  std::size_t streams_max = 4096;  // of agents, at a time
  std::chrono::milliseconds hello_timeout{10'000};
  std::chrono::milliseconds drain_timeout{5'000};  // for agents to read their last answer
  RetentionOptions retention;
  // Called for every batch that has become durable; must not block. May be empty, like the one
  // below.
  std::function<void(CommittedBatch)> committed = {};
  std::function<AlarmStatus()> alarm_status = {};
  std::function<AccessStatus()> access_status = {};  // all but what ingest counts
  ByteRates::Limits rates = {};                      // of agents' messages
  ProjectLimits project_limits = {};                 // of the disk
  // Called when a stream of a run was opened or closed, or the run was removed or kept; must not
  // block.
  std::function<void(const std::string& run)> run_changed = [](const std::string&) {};
  std::function<void(const std::string& line)> log = [](const std::string&) {};
};

class IngestServer final : public CollectorControl {
 public:
  IngestServer(Store& store, const Clock& clock, const CollectorOptions& options);
  ~IngestServer() override;  // calls Drain

  // The Ingest service, for grpc::ServerBuilder::RegisterService.
  grpc::Service* service() { return service_->service(); }

  // Refuses new streams, makes received records durable and acknowledges them, and ends the open
  // streams with kUnavailable. Call it before shutting the server down. Idempotent.
  void Drain();

  // For runs that are copied here.
  RunCopies& copies() { return registry_; }

  CollectorStatus GetStatus() override;
  // Where HTTP and gRPC listen, for the status.
  void SetHttpAddress(std::string address) {
    MutexLock lock(address_mutex_);
    http_address_ = std::move(address);
  }
  void SetGrpcAddress(std::string address) {
    MutexLock lock(address_mutex_);
    grpc_address_ = std::move(address);
  }
  std::string http_address() {
    MutexLock lock(address_mutex_);
    return http_address_;
  }
  Result<DeletedRun> DeleteRun(const std::string& run, bool force) override;
  Status KeepRun(const std::string& run, bool keep) override;
  Result<std::uint32_t> RecordSteps(const std::string& run, const std::string& steps) override {
    return registry_.RecordSteps(run, steps);
  }
  Result<RequestedCapture> RequestCapture(const std::string& run,
                                          const std::vector<std::uint32_t>& ranks,
                                          const CaptureSpec& spec) override {
    return registry_.RequestCapture(run, ranks, spec);
  }
  // See SessionRegistry.
  void RequestFull(const std::string& run, std::uint64_t step) { registry_.RequestFull(run, step); }
  Result<MadeCheckpoint> Checkpoint(const std::string& directory) override;
  bool IsStreamOpen(std::uint32_t attempt, std::uint32_t rank) override;
  // See SessionRegistry.
  bool MayComeBack(std::uint32_t attempt, std::uint32_t rank) {
    return registry_.MayComeBack(attempt, rank);
  }

 private:
  std::string State(const Status& admission) const;
  void StartWorkers();

  Store& store_;
  const Clock& clock_;
  const CollectorOptions options_;
  const std::chrono::steady_clock::time_point start_;
  const std::int64_t start_unix_nanos_;
  IngestCounters counters_;
  std::atomic<bool> draining_{false};
  MemoryGates memory_;
  DefinitionBudget definitions_;
  ByteRates rates_;
  ProjectQuotas quotas_;
  Committer committer_;
  Purger purger_;
  SessionRegistry registry_;
  std::unique_ptr<IngestService> service_;
  Retention retention_;
  StoreFacts facts_;
  Mutex address_mutex_;
  std::string http_address_ STATCOLLECT_GUARDED_BY(address_mutex_);
  std::string grpc_address_ STATCOLLECT_GUARDED_BY(address_mutex_);
  std::vector<std::unique_ptr<AdmissionWorker>> workers_;  // by part of the store
  std::unique_ptr<AdmissionWorker> retention_worker_;      // if retention is on
};

}  // namespace statcollect

#endif  // STATCOLLECT_SERVER_INGEST_INGEST_SERVER_H_
