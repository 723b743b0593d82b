#include "statagent/agent.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <utility>

#include "agent/agent_impl.h"
#include "agent/export/grpc_exporter.h"
#include "agent/launch_environment.h"
#include "agent/option_resolver.h"
#include "agent/process_guard.h"
#include "agent/stats/cuda/compute.h"
#include "agent/stats/exponent_of.h"
#include "agent/stats/exponents.h"
#include "agent/stats/rows.h"
#include "agent/stats/stats.h"
#include "agent/tensor_place.h"

namespace statagent {
namespace {

constexpr std::chrono::milliseconds kCloseInDestructor{2000};
constexpr std::chrono::milliseconds kComputeTimeout =
    std::chrono::minutes(1);  // for a stream to reach it

// Turns exceptions into a status, so that none reaches the training code.
template <typename F>
auto Guarded(F&& function) noexcept -> decltype(function()) {
  try {
    return function();
  } catch (const std::bad_alloc&) {
    return Status(Code::kResourceExhausted, "statagent: out of memory");
  } catch (const std::exception& e) {
    return Status(Code::kInternal, std::string("statagent: unexpected: ") + e.what());
  }
}

// gRPC's threads do not survive a fork, and gRPC cannot be restarted in the child.
Status CheckNotForkedAfterStart() {
  static const std::uint64_t first_start = statcollect::ForkGeneration();
  if (first_start == statcollect::ForkGeneration()) return Status::Ok();
  return Status(Code::kFailedPrecondition,
                "start the agent: this process was forked from one that had an agent; expected a "
                "new process; start "
                "the child with exec (in Python: multiprocessing's 'spawn'), or start the agent "
                "only after forking");
}

void SayWhyNothingIsRecorded(const statcollect::Launch& launch, statcollect::LogLevel level) {
  const statcollect::SystemClock clock;
  statcollect::LogLimiter(&clock, {}, level)
      .LogOnce("rank " + std::to_string(launch.rank) + " records nothing: ranks is '" +
               launch.recording.Text() + "'");
}

}  // namespace

Status CountExponents(const TensorView& tensor, int lowest, std::span<std::uint64_t> counts,
                      void* stream) {
  namespace stats = statcollect::stats;
  return Guarded([&]() -> Status {
    const auto data = CheckedTensor(tensor);
    if (!data.ok()) return data.status();
    if (tensor.device != Device::kCuda) {
      stats::CountExponents(*data, lowest, counts);
      return Status::Ok();
    }
    std::vector<std::uint64_t> all(stats::kExponentCount);
    statcollect::TensorStats beside;
    STATCOLLECT_RETURN_IF_ERROR(stats::cuda::ComputeCuda(
        *data, tensor.device_index, stream, {.stats = &beside, .exponents = all}, kComputeTimeout));
    std::fill(counts.begin(), counts.end(), std::uint64_t{0});
    for (std::uint32_t i = 0; i < stats::kExponentCount && !counts.empty(); ++i) {
      const std::int32_t exponent = stats::kExponentMin + static_cast<std::int32_t>(i);
      counts[stats::BinOf(exponent, lowest, static_cast<std::uint32_t>(counts.size()))] += all[i];
    }
    return Status::Ok();
  });
}

Status CountExponents(const TensorView& tensor, int lowest, std::span<std::uint64_t> counts) {
  return CountExponents(tensor, lowest, counts, nullptr);
}

Result<Statistics> Compute(const TensorView& tensor, std::uint32_t sketch, std::uint32_t samples) {
  return Compute(tensor, sketch, samples, nullptr);
}

Result<Statistics> Compute(const TensorView& tensor, std::uint32_t sketch, std::uint32_t samples,
                           void* stream) {
  return Guarded([&]() -> Result<Statistics> {
    if ((sketch != 0 && sketch != 16 && sketch != 32 && sketch != 64) ||
        samples > statcollect::kSamplesMax) {
      return Status(Code::kInvalidArgument,
                    "compute: sketch is " + std::to_string(sketch) + " and samples " +
                        std::to_string(samples) +
                        "; expected a sketch of 0, 16, 32 or 64 and at most 1024 samples");
    }
    const auto data = CheckedTensor(tensor);
    if (!data.ok()) return data.status();
    Statistics out;
    out.sketch.resize(sketch);
    out.samples.resize(samples);
    std::uint32_t written = 0;
    statcollect::TensorStats s;
    const TensorPlace place(tensor);
    if (place.recorded() != nullptr)
      STATCOLLECT_RETURN_IF_ERROR(statcollect::CheckPlacement(data->shape, *place.recorded()));
    if (tensor.device == Device::kCuda) {
      STATCOLLECT_RETURN_IF_ERROR(statcollect::stats::cuda::ComputeCuda(
          *data, tensor.device_index, stream, {&s, out.sketch, out.samples, &written},
          kComputeTimeout, place.computed()));
    } else {
      s = statcollect::stats::ComputeCpu(*data, out.sketch, out.samples, &written, nullptr,
                                         place.computed());
    }
    out.samples.resize(written);
    out.numel = s.numel;
    out.nan = s.nan;
    out.pos_inf = s.pos_inf;
    out.neg_inf = s.neg_inf;
    out.zero = s.zero;
    out.neg = s.neg;
    out.pos = s.pos;
    out.has_finite = s.has_finite;
    out.min = s.min;
    out.max = s.max;
    out.mean = s.mean;
    out.std = s.std;
    out.l1 = s.l1;
    out.l2 = s.l2;
    out.hash = s.hash;
    return out;
  });
}

Status ComputeRows(const TensorView& rows, std::uint64_t first_column,
                   std::span<RowStatistics> out) {
  return ComputeRows(rows, first_column, out, nullptr);
}

Status ComputeRows(const TensorView& rows, std::uint64_t first_column, std::span<RowStatistics> out,
                   void* stream) {
  return Guarded([&]() -> Status {
    const auto data = CheckedRows(rows, first_column, out.size());
    if (!data.ok()) return data.status();
    std::vector<statcollect::RowStats> computed(out.size());
    if (rows.device == Device::kCuda) {
      STATCOLLECT_RETURN_IF_ERROR(statcollect::stats::cuda::ComputeRowsCuda(
          *data, first_column, rows.device_index, stream, computed, kComputeTimeout));
    } else {
      statcollect::stats::ComputeRows(*data, first_column, computed, nullptr);
    }
    std::transform(computed.begin(), computed.end(), out.begin(), [](const auto& row) {
      return RowStatistics{.l2 = row.l2, .hash = row.hash, .sketch = row.sketch};
    });
    return Status::Ok();
  });
}

void TokenKeys(std::span<const std::int64_t> ids, std::optional<std::uint64_t> before,
               std::span<std::uint64_t> keys) {
  std::uint64_t key = before.value_or(statcollect::stats::kTokenKeyStart);
  for (std::size_t i = 0; i < std::min(ids.size(), keys.size()); ++i) {
    key = statcollect::stats::TokenKey(key, static_cast<std::uint64_t>(ids[i]));
    keys[i] = key;
  }
}

Result<std::unique_ptr<Agent>> Agent::Start(Options options) {
  return Guarded([&]() -> Result<std::unique_ptr<Agent>> {
    auto resolved = statcollect::ResolveOptions(options, statcollect::ProcessEnvironment());
    if (!resolved.ok()) return resolved.status();
    if (resolved->disabled) return std::unique_ptr<Agent>(new Agent(std::make_unique<Impl>()));
    auto launch = statcollect::DetectLaunch(resolved->launch, statcollect::ProcessEnvironment(),
                                            statcollect::ReadParentIdentity);
    if (!launch.ok()) return launch.status();
    if (!launch->recording.Contains(launch->rank)) {
      SayWhyNothingIsRecorded(*launch, resolved->log);
      return std::unique_ptr<Agent>(new Agent(std::make_unique<Impl>(*std::move(launch))));
    }
    STATCOLLECT_RETURN_IF_ERROR(CheckNotForkedAfterStart());
    auto transport = statcollect::MakeGrpcTransport(resolved->collector, resolved->token_file,
                                                    resolved->project, resolved->tls);
    if (!transport.ok()) return transport.status();
    auto impl =
        std::make_unique<Impl>(*std::move(resolved), *std::move(launch), *std::move(transport));
    const Status started = impl->Start();
    if (!started.ok()) {
      (void)impl->Close(std::chrono::milliseconds(0));
      return started;
    }
    return std::unique_ptr<Agent>(new Agent(std::move(impl)));
  });
}

Agent::Agent(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Agent::~Agent() {
  if (impl_->IsCopy()) {
    (void)impl_.release();  // its threads and mutexes belong to the parent
    return;
  }
  if (!impl_->Inert()) (void)Close(kCloseInDestructor);
}

Status Agent::Observe(const Identity& identity, const TensorView& tensor, void* stream) noexcept {
  if (impl_->Inert()) return Status::Ok();
  return Guarded([&] { return impl_->Observe(identity, tensor, stream); });
}

Result<std::uint32_t> Agent::Intern(const Identity& identity) noexcept {
  if (impl_->Inert()) return std::uint32_t{0};
  return Guarded([&] { return impl_->Intern(identity); });
}

Status Agent::Observe(std::uint32_t handle, const TensorView& tensor, void* stream) noexcept {
  if (impl_->Inert()) return Status::Ok();
  return Guarded([&] { return impl_->Observe(handle, tensor, stream); });
}

Status Agent::ObserveList(std::span<const Item> items, void* stream,
                          std::size_t* refused) noexcept {
  *refused = 0;
  if (impl_->Inert()) return Status::Ok();
  return Guarded([&] { return impl_->ObserveList(items, stream, refused); });
}

Status Agent::LogScalar(std::string_view name, double value, std::uint32_t micro_batch,
                        std::optional<std::uint64_t> step) noexcept {
  if (impl_->Inert()) return Status::Ok();
  return Guarded([&] { return impl_->recorder().log().LogScalar(name, value, micro_batch, step); });
}

Status Agent::LogEvent(std::string_view kind, std::string_view text,
                       const std::map<std::string, std::string>& fields,
                       std::optional<std::uint64_t> step) noexcept {
  if (impl_->Inert()) return Status::Ok();
  return Guarded([&] { return impl_->recorder().log().LogEvent(kind, text, fields, step); });
}

Status Agent::LogMemory(const MemoryUsage& usage) noexcept {
  if (impl_->Inert()) return Status::Ok();
  return Guarded([&]() -> Status {
    statcollect::MemoryRecord record{.micro_batch = usage.micro_batch,
                                     .phase = usage.phase,
                                     .device = std::string(usage.device),
                                     .module = std::string(usage.module)};
    for (const auto& [quantity, bytes] : usage.bytes) {
      const auto index = static_cast<std::size_t>(quantity);
      if (index >= record.bytes.size()) {
        return Status(Code::kInvalidArgument, "log memory: found quantity " +
                                                  std::to_string(index) +
                                                  "; expected one of statagent/types.h");
      }
      record.present |= statcollect::BitOf(quantity);
      record.bytes[index] = bytes;
    }
    return impl_->recorder().log().LogMemory(std::move(record));
  });
}

Status Agent::LogDensity(const InputDensity& density, std::optional<std::uint64_t> step) noexcept {
  if (impl_->Inert()) return Status::Ok();
  return Guarded([&] {
    return impl_->recorder().log().LogDensity(
        {.micro_batch = density.micro_batch,
         .input = std::string(density.input),
         .type = density.type,
         .pad_index = density.pad_index,
         .valid = density.valid,
         .total = density.total,
         .valid_per_sample = {density.valid_per_sample.begin(), density.valid_per_sample.end()}},
        step);
  });
}

Status Agent::RecordRows(const TokenRows& rows, std::optional<std::uint64_t> step) noexcept {
  if (impl_->Inert()) return Status::Ok();
  return Guarded([&] { return impl_->RecordRows(rows, step); });
}

Status Agent::AddConfig(const std::map<std::string, std::string>& settings) noexcept {
  if (impl_->Inert()) return Status::Ok();
  return Guarded([&] { return impl_->recorder().log().AddConfig(settings); });
}

void Agent::EndStep() noexcept {
  if (!impl_->Inert()) {
    (void)Guarded([&]() -> Status {
      impl_->EndStep();
      return Status::Ok();
    });
  }
}

Status Agent::SetStep(std::uint64_t step) noexcept {
  if (impl_->Inert()) return Status::Ok();
  return Guarded([&] { return impl_->SetStep(step); });
}

void Agent::ReplaysIn(int device, void* stream) noexcept {
  if (impl_->Inert()) return;
  (void)Guarded([&]() -> Status {
    impl_->ReplaysIn(device, stream);
    return Status::Ok();
  });
}

std::vector<int> Agent::ReplayDevices() const noexcept {
  if (impl_->Inert()) return {};
  auto devices = Guarded([&]() -> Result<std::vector<int>> { return impl_->ReplayDevices(); });
  return devices.ok() ? *std::move(devices) : std::vector<int>();
}

std::uint64_t Agent::step() const noexcept { return impl_->Inert() ? 0 : impl_->recorder().step(); }

bool Agent::StepWanted() const noexcept {
  return !impl_->Inert() && impl_->recorder().StepWanted();
}

bool Agent::StepAsked() const noexcept { return !impl_->Inert() && impl_->recorder().StepAsked(); }

std::optional<FullSteps> Agent::NextFullSteps() noexcept {
  return impl_->Inert() ? std::nullopt : impl_->NextFullSteps();
}

Status Agent::Flush(std::chrono::milliseconds timeout) noexcept {
  if (impl_->Inert()) return Status::Ok();
  return Guarded([&] { return impl_->Flush(timeout); });
}

Status Agent::Close(std::chrono::milliseconds timeout) noexcept {
  if (impl_->Inert()) return Status::Ok();
  return Guarded([&] { return impl_->Close(timeout); });
}

Status Agent::CloseFailed(std::chrono::milliseconds timeout) noexcept {
  if (impl_->Inert()) return Status::Ok();
  return Guarded([&] { return impl_->Close(timeout, /*goodbye=*/false); });
}

Status Agent::CloseUnused(std::chrono::milliseconds timeout) noexcept {
  if (impl_->Inert()) return Status::Ok();
  return Guarded([&] { return impl_->CloseUnused(timeout); });
}

Counters Agent::counters() const noexcept {
  Counters counters;
  if (impl_->Inert()) return counters;
  statcollect::AgentCounters found = impl_->counters();
  counters.produced = found.produced;
  counters.acked = found.acked;
  counters.pending = found.pending;
  counters.spilled = std::min(found.pending, impl_->spilled());
  counters.dropped = std::move(found.dropped_by_cause);
  return counters;
}

std::uint32_t Agent::rank() const noexcept { return impl_->launch().rank; }

std::uint32_t Agent::world_size() const noexcept { return impl_->launch().world_size; }

std::optional<RecordingRank> Agent::recording_rank() const noexcept {
  if (impl_->Inert()) return std::nullopt;
  return impl_->recording_rank();
}

}  // namespace statagent
