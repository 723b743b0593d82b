#include "agent/agent_impl.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <random>
#include <utility>

#include "common/names.h"

namespace statagent {
namespace {

using namespace statcollect;

constexpr std::chrono::milliseconds kCloseAtExit{2000};
// Longer waits are cut, so that clocks do not overflow.
constexpr std::chrono::milliseconds kTimeoutMax = std::chrono::hours(24);

SessionId RandomSessionId() {
  std::random_device random;
  SessionId id;
  for (std::uint8_t& byte : id) byte = static_cast<std::uint8_t>(random());
  return id;
}

std::string HostName() {
  std::array<char, 256> name{};
  if (gethostname(name.data(), name.size() - 1) != 0) return "unknown";
  return Printable(name.data());
}

SessionInfo MakeSession(const ResolvedOptions& options, const Launch& launch, const Clock& clock) {
  return {.run = options.run,
          .session = RandomSessionId(),
          .launch = launch.id,
          .if_exists = options.if_exists,
          .rank = launch.rank,
          .local_rank = launch.local_rank,
          .world_size = launch.world_size,
          .host = HostName(),
          .pid = getpid(),
          .start_unix_nanos = clock.UnixNanos(),
          .agent_version = STATCOLLECT_VERSION,
          .config = options.config};
}

ExporterOptions MakeExporterOptions(const ResolvedOptions& options,
                                    const statcollect::Definitions& definitions,
                                    std::function<void(const Directive&)> on_directive) {
  std::random_device random;
  return {.collector = options.collector,
          .backoff = {},
          .seed = random(),
          .welcome_timeout = std::chrono::seconds(20),
          .definitions = &definitions,
          .on_directive = std::move(on_directive)};
}

Recorder::Options MakeRecorderOptions(const ResolvedOptions& options) {
  return {.steps = options.steps,
          .slots = options.buffer_records_max,
          .sketch = options.sketch,
          .samples = options.samples};
}

std::chrono::steady_clock::time_point After(std::chrono::milliseconds timeout) {
  return std::chrono::steady_clock::now() + std::clamp(timeout, std::chrono::milliseconds(0), kTimeoutMax);
}

IdentityView ToIdentityView(const Identity& identity) {
  return {.name = identity.name,
          .kind = identity.kind,
          .output_path = identity.output_path,
          .micro_batch = identity.micro_batch,
          .call = static_cast<std::uint32_t>(std::max<std::int64_t>(identity.call, 0)),
          .mode = identity.mode,
          .parent = identity.parent,
          .class_name = identity.class_name,
          .depth = identity.depth};
}

Status CheckCall(const Identity& identity, std::int64_t lowest) {
  constexpr std::int64_t kHighest = 0xffff'fffe;
  if (identity.call >= lowest && identity.call <= kHighest) return Status::Ok();
  return Status(Code::kInvalidArgument, "observe '" + Printable(identity.name) + "': call is " +
                                            std::to_string(identity.call) + "; expected " +
                                            std::to_string(lowest) + " or more");
}

}  // namespace

Result<statcollect::stats::CpuTensor> ToCpuTensor(const TensorView& tensor) {
  if (tensor.device != Device::kCpu) {
    return Status(Code::kUnimplemented, "histogram of a tensor on device " +
                                            std::to_string(static_cast<int>(tensor.device)) + ":" +
                                            std::to_string(tensor.device_index) +
                                            ": expected device 0 (CPU); copy the tensor to the CPU first");
  }
  return CheckedTensor(tensor);
}

Result<statcollect::stats::CpuTensor> CheckedTensor(const TensorView& tensor) {
  if (tensor.device != Device::kCpu && tensor.device != Device::kCuda) {
    return Status(Code::kInvalidArgument, "observe tensor: its device is " +
                                              std::to_string(static_cast<int>(tensor.device)) +
                                              "; expected 0 (CPU) or 1 (CUDA)");
  }
  const statcollect::stats::CpuTensor cpu{tensor.data, tensor.dtype, tensor.shape, tensor.strides};
  STATCOLLECT_RETURN_IF_ERROR(statcollect::stats::Validate(cpu));
  return cpu;
}

Agent::Impl::Parts::Parts(const ResolvedOptions& options, const Launch& launch,
                          std::unique_ptr<Transport> own_transport)
    : log(&clock),
      recorder(MakeRecorderOptions(options), &clock, &ledger, &waker),
      workers(static_cast<int>(options.threads)),
      transport(std::move(own_transport)),
      exporter(MakeSession(options, launch, clock),
               MakeExporterOptions(options, recorder.definitions(),
                                   [this](const Directive& directive) { Obey(directive); }),
               transport.get(), &ledger, &log,
               [this] {
                 if (exporter.Failed()) recorder.Refuse(kDropRejected);
                 waker.Wake();
               }),
      cuda({.sketch = options.sketch, .samples = options.samples}, statcollect::stats::cuda::MakeCudaApi(),
           &recorder, &clock),
      batcher(&recorder, &exporter, &ledger, &waker, &clock, options.sketch, &cuda) {}

void Agent::Impl::Parts::Obey(const Directive& directive) {
  if (directive.kind != "steps") return;
  const auto wanted = directive.arguments.find("steps");
  if (wanted == directive.arguments.end()) return;
  auto steps = StepSet::Parse(wanted->second);
  if (!steps.ok())
    return log.Log("the collector asked for steps that make no sense: " + steps.status().message());
  const std::string text = wanted->second.empty() ? "every step" : "steps " + wanted->second;
  recorder.RecordSteps(*std::move(steps));
  (void)recorder.LogEvent("recording_changed", "the collector asked for " + text + ", from the next step on",
                          {{"steps", wanted->second}});
}

Agent::Impl::Impl(ResolvedOptions options, Launch launch, std::unique_ptr<Transport> transport)
    : options_(std::move(options)),
      launch_(std::move(launch)),
      parts_(std::make_unique<Parts>(options_, launch_, std::move(transport))) {}

Agent::Impl::~Impl() {
  if (Inert()) return;
  RemoveClosedAtExit(this);
  (void)Close(kCloseAtExit);
}

Status Agent::Impl::Start() {
  parts_->exporter.Start();
  parts_->batcher.Start();
  const Status welcome = parts_->exporter.WaitForWelcome(After(options_.connect_timeout), options_.required);
  AddClosedAtExit(this);
  if (welcome.ok()) return welcome;
  if (IsFatal(welcome.code()) || options_.required) return welcome;
  parts_->log.Log("cannot " + welcome.message() + "; training goes on without; up to " +
                  std::to_string(options_.buffer_records_max) +
                  " records wait in memory, more are dropped and counted, and the agent keeps trying");
  return Status::Ok();
}

Result<statcollect::stats::CpuTensor> Agent::Impl::Open(const TensorView& tensor) {
  auto data = CheckedTensor(tensor);
  if (data.ok() && tensor.device == Device::kCuda) {
    STATCOLLECT_RETURN_IF_ERROR(parts_->cuda.Check(*data, tensor.device_index));
  }
  return data;
}

Status Agent::Impl::Observe(const Identity& identity, const TensorView& tensor, void* stream) {
  STATCOLLECT_RETURN_IF_ERROR(CheckCall(identity, -1));
  const auto data = Open(tensor);
  if (!data.ok()) return data.status();
  Slot* slot = nullptr;
  STATCOLLECT_RETURN_IF_ERROR(
      parts_->recorder.Begin(ToIdentityView(identity), identity.call < 0, tensor.dtype, tensor.shape, &slot));
  return Fill(slot, *data, tensor, stream);
}

Status Agent::Impl::Observe(std::uint32_t handle, const TensorView& tensor, void* stream) {
  const auto data = Open(tensor);
  if (!data.ok()) return data.status();
  Slot* slot = nullptr;
  STATCOLLECT_RETURN_IF_ERROR(parts_->recorder.Begin(handle, tensor.dtype, tensor.shape, &slot));
  return Fill(slot, *data, tensor, stream);
}

Status Agent::Impl::ObserveList(std::span<const Item> items, void* stream, std::size_t* refused) {
  Status first;
  const auto note = [&](const Status& status) {
    if (status.ok()) return;
    ++*refused;
    if (first.ok()) first = status;
  };
  std::map<int, std::vector<statcollect::CudaSlots::Item>> lists;  // by device
  for (const Item& item : items) {
    if (item.tensor.device != Device::kCuda) {
      note(Observe(item.handle, item.tensor, stream));
      continue;
    }
    const auto data = Open(item.tensor);
    Slot* slot = nullptr;
    const Status begun =
        !data.ok() ? data.status()
                   : parts_->recorder.Begin(item.handle, item.tensor.dtype, item.tensor.shape, &slot);
    note(begun);
    if (slot != nullptr) lists[item.tensor.device_index].push_back({slot, *data});
  }
  for (const auto& [device, list] : lists) {
    std::size_t strided = 0;
    parts_->cuda.FillList(list, device, stream, &strided);
    for (; strided > 0; --strided) {
      note(Status(Code::kUnimplemented,
                  "observe a list of CUDA tensors: one has more dimensions than the kernels walk; observe it "
                  "contiguous"));
    }
  }
  return first;
}

Status Agent::Impl::Fill(Slot* slot, const statcollect::stats::CpuTensor& data, const TensorView& tensor,
                         void* stream) {
  if (slot == nullptr) return Status::Ok();
  if (tensor.device == Device::kCuda) return parts_->cuda.Fill(slot, data, tensor.device_index, stream);
  slot->stats = statcollect::stats::ComputeCpu(data, slot->sketch, slot->samples, &slot->sample_count,
                                               &parts_->workers);
  parts_->recorder.Commit(slot);
  return Status::Ok();
}

Result<std::uint32_t> Agent::Impl::Intern(const Identity& identity) {
  STATCOLLECT_RETURN_IF_ERROR(CheckCall(identity, 0));
  return parts_->recorder.Intern(ToIdentityView(identity));
}

Status Agent::Impl::Flush(std::chrono::milliseconds timeout) {
  parts_->batcher.Flush();
  const bool settled = parts_->ledger.WaitSettled(After(timeout));
  if (const Status failure = parts_->exporter.failure(); !failure.ok()) return failure;
  if (settled) return Status::Ok();
  return Status(Code::kDeadlineExceeded,
                "flush: " + std::to_string(counters().pending) + " records are still pending after " +
                    std::to_string(timeout.count()) + " ms; expected 0; see whether the collector at " +
                    options_.collector + " is reachable, or wait longer");
}

Status Agent::Impl::Close(std::chrono::milliseconds timeout) {
  std::lock_guard one_at_a_time(close_mutex_);
  if (std::exchange(closed_, true)) return close_status_;
  const TimePoint deadline = After(timeout);
  const std::uint64_t before = counters().dropped();
  parts_->recorder.Refuse(kDropClosed);
  parts_->batcher.Stop(deadline);
  close_status_ = parts_->exporter.Finish(deadline);
  parts_->recorder.DropRest(kDropClosed);
  parts_->cuda.Abandon();
  const std::uint64_t lost = counters().dropped() - before;
  if (lost > 0 && !IsFatal(close_status_.code())) {
    close_status_ = Status(Code::kDeadlineExceeded,
                           "close: " + std::to_string(lost) + " records could not be made durable in " +
                               std::to_string(timeout.count()) +
                               " ms and are counted as dropped; see whether the collector at " +
                               options_.collector + " is reachable, or give close more time");
  }
  return close_status_;
}

void Agent::Impl::CloseAtExit() noexcept {
  if (!Inert()) (void)Close(kCloseAtExit);
}

}  // namespace statagent
