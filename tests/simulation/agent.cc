#include "tests/simulation/agent.h"

#include <filesystem>
#include <fstream>
#include <iterator>
#include <utility>

namespace statcollect::simulation {
namespace {

constexpr std::uint32_t kTensors = 3;
// A file takes a batch only if the largest possible one fits; then it is full after some kilobytes.
constexpr std::uint64_t kSpillBytes = (1 << 20) + (8 << 10);

}  // namespace

Agent::Agent(AgentPlan plan, Network& network, Threads& threads, History& history)
    : plan_(std::move(plan)),
      network_(network),
      threads_(threads),
      history_(history),
      log_(&clock_, [](const std::string&) {}),
      transport_(network.MakeTransport(plan_.session.session, plan_.number)) {
  history_.Of(plan_.session.session).name = "agent " + std::to_string(plan_.number) + " (run " +
                                            plan_.session.run + ", rank " +
                                            std::to_string(plan_.session.rank) + ")";
}

void Agent::Start() {
  threads_.Spawn([this] {
    exporter_ = std::make_unique<Exporter>(
        plan_.session,
        ExporterOptions{.collector = "simulated:1",
                        .seed = plan_.number,
                        .spill = {.directory = plan_.spill, .bytes_max = kSpillBytes}},
        transport_.get(), &ledger_, &log_, [] {});
    if (const Status spill = exporter_->CheckSpill(); !spill.ok()) history_.Fail(spill.message());
    exporter_->Start();
    started_ = true;
    Run();
    exporter_ = nullptr;
    if (killed_) RestoreSpill();
    done_ = true;
  });
}

void Agent::Run() {
  const auto wait = network_.Between(100, 20'000);
  const Status welcome =
      exporter_->WaitForWelcome(clock_.Now() + wait, threads_.random()() % 2 == 0);
  refused_ = !welcome.ok() && IsFatal(welcome.code());
  while (step_ < plan_.batches && !refused_ && !killed_) {
    threads_.Sleep(network_.Between(1, 400));
    if (killed_) break;
    (void)exporter_->Tend();
    if (exporter_->Failed()) {
      refused_ = true;
    } else if (exporter_->HasRoom()) {
      Submit();
    }
  }
  if (killed_) {
    result_ = exporter_->Finish(Exporter::TimePoint::min(), false);
    return;
  }
  result_ = exporter_->Finish(clock_.Now() + plan_.close);
  if (killed_) return;
  session_kept_ = exporter_->progress().spilled;
  const AgentCounters counters = ledger_.Snapshot();
  history_.CheckAgent(plan_.session.session, counters);
  if (counters.pending != exporter_->progress().spilled)
    history_.Fail(history_.Of(plan_.session.session).name + ": " +
                  std::to_string(counters.pending) + " records pending after the end, " +
                  std::to_string(exporter_->progress().spilled) + " of them in the spill file");
}

void Agent::Submit() {
  SessionHistory& session = history_.Of(plan_.session.session);
  const std::uint32_t tensors = threads_.random()() % 3 == 0 ? kTensors : 0;
  RecordBatch batch = History::MakeBatch(plan_.session.session, step_++, submitted_ + 1, tensors,
                                         static_cast<std::uint32_t>(1 + threads_.random()() % 4));
  if (step_ == 1) {
    batch.layouts = {{.id = 0, .dtype = DType::kF32, .shape = {2}}};
    for (std::uint32_t id = 0; id < kTensors; ++id)
      batch.activations.push_back(
          {.id = id, .key = {.name = "layer." + std::to_string(id), .kind = Kind::kOutput}});
  }
  const std::uint64_t records = batch.records();
  submitted_ += records;
  session.submitted = submitted_;
  ledger_.Produce(records);
  exporter_->Submit(std::move(batch), 1 << 10);
}

std::string Agent::SpillPath() const {
  std::string hex;
  for (const auto byte : plan_.session.session)
    hex += "0123456789abcdef"[byte >> 4], hex += "0123456789abcdef"[byte & 15];
  for (const auto& entry : std::filesystem::directory_iterator(plan_.spill)) {
    if (entry.path().string().find(hex) != std::string::npos) return entry.path().string();
  }
  return {};
}

void Agent::Kill() {
  if (killed_ || done_ || !started_) return;
  if (!plan_.spill.empty()) {
    const std::string path = SpillPath();
    std::ifstream file(path, std::ios::binary);
    if (!path.empty() && file) spill_ = std::string(std::istreambuf_iterator<char>(file), {});
  }
  killed_ = true;
  network_.dead.insert(plan_.number);
  network_.Reset(plan_.number);
}

// What the process did after its death is undone.
void Agent::RestoreSpill() {
  if (plan_.spill.empty()) return;
  const std::string path = SpillPath();
  if (path.empty()) return;
  std::filesystem::remove(path);
  if (spill_) std::ofstream(path, std::ios::binary) << *spill_;
}

void Agent::Check() {
  if (!killed_) history_.CheckAgent(plan_.session.session, ledger_.Snapshot());
}

}  // namespace statcollect::simulation
