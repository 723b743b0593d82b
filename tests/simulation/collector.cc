#include "tests/simulation/collector.h"

#include <cstdlib>
#include <filesystem>
#include <utility>
#include <vector>

#include "server/ingest/admission_worker.h"
#include "server/ingest/committer.h"
#include "server/ingest/purger.h"
#include "server/ingest/registry.h"
#include "server/store/rocksdb/rocksdb_store.h"
#include "tests/simulation/watched_store.h"
#include "tests/support/simulated_disk.h"

namespace statcollect::simulation {
namespace {

constexpr std::chrono::seconds kTick{1}, kDrainTimeout{5};
constexpr std::chrono::milliseconds kHelloTimeout{10'000};

}  // namespace

Machine::Machine(bool real_store, std::uint64_t seed) : random_(seed) {
  if (!real_store) {
    model_ = std::make_unique<testing::FakeStore>();
    return;
  }
  disk_ = std::make_shared<testing::SimulatedDisk>();
  env_ = testing::MakeSimulatedEnv(disk_);
  std::string pattern = std::filesystem::temp_directory_path() / "statcollect_simulation_XXXXXX";
  directory_ = mkdtemp(pattern.data());
}

Machine::~Machine() {
  Close();
  if (!directory_.empty()) std::filesystem::remove_all(directory_);
}

Status Machine::Open() {
  if (model_ != nullptr || opened_ != nullptr) return Status::Ok();
  auto opened = OpenRocksDbStore(directory_, {.memtable_bytes = 32 << 10, .env = env_});
  if (!opened.ok()) return opened.status();
  opened_ = *std::move(opened);
  return Status::Ok();
}

void Machine::Close() { opened_ = nullptr; }

// RocksDB's threads take the disk's lock, too.
void Machine::CutPower() {
  const Real real;
  if (disk_ != nullptr) disk_->CutPower();
}
void Machine::CutPowerSoon() {
  const Real real;
  if (disk_ != nullptr) disk_->CutPowerAfter(1 + random_() % 12);
}
bool Machine::powered() const {
  const Real real;
  return disk_ == nullptr || disk_->powered();
}
void Machine::PowerOn() {
  const Real real;
  if (disk_ != nullptr && !disk_->powered()) disk_->Restart(random_);
}

// As IngestServer, with the simulated network in place of its gRPC service.
class Collector::Process final : public Listener {
  using Ends = std::vector<std::shared_ptr<ServerEnd>>;  // in the order in which they came

 public:
  Process(Store& store, History& history, Threads& threads, std::function<bool()> powered,
          std::function<void()> lost)
      : threads_(threads),
        store_(store, history, threads, std::move(powered), std::move(lost)),
        committer_(store_, clock_, {.queue_bytes_max = 8 << 10}),
        purger_(store_, [](const std::string&) {}),
        registry_(store_, clock_, committer_, [this] { purger_.Wake(); }),
        context_{.reader = store_,
                 .writer = store_,
                 .clock = clock_,
                 .registry = registry_,
                 .committer = committer_,
                 .counters = counters_,
                 .admit =
                     [this](const std::string& run, std::uint32_t rank, std::function<void()> job) {
                       worker_.Post(AdmissionKey(run, rank), std::move(job));
                     },
                 .memory = memory_,
                 .definitions = definitions_},
        worker_(kTick, [this] {
          const Ends ends = ends_;
          for (const auto& end : ends) end->stream()->CheckHello(clock_.Now(), kHelloTimeout);
          (void)committer_.Admission();
        }) {}

  void Kill() {
    store_.Kill();
    const Ends ends = ends_;
    for (const auto& end : ends) end->Kill();
  }
  void Drain() {
    draining_ = true;
    purger_.RequestStop();
    const Ends ends = ends_;
    for (const auto& end : ends) end->stream()->Drain();
    worker_.Stop();
    committer_.Drain();
    const Nanos until = threads_.now() + kDrainTimeout;
    while (!ends_.empty() && threads_.now() < until) threads_.Sleep(std::chrono::milliseconds(20));
    // Shutting the server down ends the rest.
    const Ends rest = ends_;
    for (const auto& end : rest) end->Break();
    while (!ends_.empty()) {
      threads_.Sleep(std::chrono::milliseconds(20));
    }
  }
  SessionRegistry& registry() { return registry_; }
  std::uint64_t commits() const { return committer_.commits(); }
  Status Admission() { return committer_.Admission(); }
  std::size_t streams() const { return ends_.size(); }

  const StreamContext& context() override { return context_; }
  void Add(const std::shared_ptr<ServerEnd>& end) override {
    ends_.push_back(end);
    if (store_.killed()) {
      end->Kill();
    } else if (draining_) {
      end->stream()->Drain();
    }
  }
  void Remove(const std::shared_ptr<ServerEnd>& end) override { std::erase(ends_, end); }

 private:
  Threads& threads_;
  const SystemClock clock_;
  WatchedStore store_;
  IngestCounters counters_;
  Committer committer_;
  Purger purger_;
  SessionRegistry registry_;
  MemoryGates memory_{std::size_t{1} << 40, /*parts=*/1,
                      /*threads=*/0};  // never full: its threads are none of the schedule's
  DefinitionBudget definitions_;
  const StreamContext context_;
  Ends ends_;
  bool draining_ = false;
  AdmissionWorker worker_;
};

std::string Collector::State() {
  if (process_ == nullptr) return ending_ == 0 ? "is down" : "ends";
  const Status admission = process_->Admission();
  return std::to_string(process_->streams()) + " streams, " +
         (admission.ok() ? "takes records" : admission.message());
}

void Collector::Start() {
  Status opened;
  {
    const Real real;
    machine_.PowerOn();
    opened = machine_.Open();
    if (opened.ok()) history_.CheckStore(*machine_.store());
  }
  if (!opened.ok()) return history_.Fail("the store does not open: " + opened.message());
  ++starts_;
  process_ = std::make_shared<Process>(
      *machine_.store(), history_, threads_, [this] { return machine_.powered(); },
      [this] { Kill(true); });
  last_ = process_;
  network_.listener = process_.get();
}

void Collector::Kill(bool power) {
  // A drained process may still be at work.
  const std::shared_ptr<Process> victim = process_ != nullptr ? process_ : last_.lock();
  if (victim == nullptr) return;
  if (power) machine_.CutPower();
  network_.listener = nullptr;
  power ? network_.SilenceAll() : network_.ResetAll();  // the kernel of a killed process says so
  victim->Kill();
  if (process_ != nullptr) Bury(std::exchange(process_, nullptr));
}

void Collector::Drain() {
  if (process_ == nullptr) return;
  network_.listener = nullptr;
  Bury(std::exchange(process_, nullptr));
}

void Collector::Bury(std::shared_ptr<Process> process) {
  ++ending_;
  threads_.Spawn([this, process = std::move(process)]() mutable {
    process->Drain();
    commits_ += process->commits();
    while (process.use_count() > 1) threads_.Sleep(std::chrono::milliseconds(20));
    process = nullptr;
    const Real real;
    machine_.Close();
    --ending_;
  });
}

void Collector::DeleteRun(const std::string& run) {
  const std::shared_ptr<Process> process = process_;
  if (process != nullptr) (void)process->registry().DeleteRun(run, /*force=*/true);
}

}  // namespace statcollect::simulation
