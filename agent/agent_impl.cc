#include "agent/agent_impl.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <random>
#include <utility>

#include "agent/bounded_run.h"
#include "agent/export/spill_file.h"
#include "agent/export/wire.h"
#include "agent/stats/exponents.h"
#include "agent/stats/rows.h"
#include "agent/tensor_place.h"
#include "common/names.h"
#include "common/text.h"

namespace statagent {
namespace {

using namespace statcollect;

constexpr std::chrono::milliseconds kCloseAtExit{2000};
// The part of the time to close that is kept for what follows the wait for the collector: a fifth,
// within these bounds. A disk that makes no progress for that long counts as hung.
constexpr std::chrono::milliseconds kEndingMin{400}, kEndingMax{5000};
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

// So that two runs can be compared knowing which ranks recorded. A setting of the user stands.
std::map<std::string, std::string> WithRanks(std::map<std::string, std::string> config,
                                             const Launch& launch) {
  const std::string ranks = launch.recording.Text();
  if (!ranks.empty()) config.emplace("recording.ranks", ranks);
  return config;
}

// Of what each rank would say, such as that the collector is away: the first one that records does.
LogLevel LevelOfAll(const Launch& launch) {
  return launch.recording.CountBelow(launch.rank) == 0 ? LogLevel::kWarning : LogLevel::kInfo;
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
          .config = WithRanks(options.config, launch),
          .ranks = launch.recording.Text()};
}

ExporterOptions MakeExporterOptions(const ResolvedOptions& options, const Launch& launch,
                                    const statcollect::Definitions& definitions,
                                    std::function<void(const Directive&)> on_directive,
                                    std::function<void(const char*, const std::string&)> on_event) {
  std::random_device random;
  return {.collector = options.collector,
          .backoff = {},
          .seed = random(),
          .welcome_timeout = std::chrono::seconds(20),
          .definitions = &definitions,
          .spill = options.spill,
          .away = LevelOfAll(launch),
          .on_directive = std::move(on_directive),
          .on_event = std::move(on_event)};
}

// In the folder of the spill file if there is one, otherwise in memory.
std::unique_ptr<TensorRing> MakeRing(const ResolvedOptions& options, const SessionInfo& session,
                                     Status* status) {
  if (!options.ring.on()) return nullptr;
  std::string path;
  if (!options.spill.directory.empty()) {
    *status = CheckSpillDirectory(options.spill.directory);
    if (!status->ok()) return nullptr;
    path = SpillPath(options.spill.directory, session.rank, session.session, ring::kSuffix);
  }
  auto memory = RingMemory::Make(path, wire::EncodeHello(session, 1), options.ring);
  *status = memory.status();
  if (!status->ok()) return nullptr;
  return std::make_unique<TensorRing>(options.ring, *std::move(memory));
}

Recorder::Options MakeRecorderOptions(const ResolvedOptions& options, TensorRing* ring) {
  return {.steps = options.steps,
          .slots = options.buffer_records_max,
          .sketch = options.sketch,
          .samples = options.samples,
          .captures = options.captures,
          .exponents = options.exponents,
          .ring = ring};
}

statcollect::stats::cuda::EngineOptions MakeEngineOptions(const ResolvedOptions& options) {
  return {.sketch = options.sketch,
          .samples = options.samples,
          .exponent_lowest = kExponentLowest,
          .exponents = options.exponents.empty() ? 0 : static_cast<std::uint32_t>(kExponentsMax)};
}

std::chrono::steady_clock::time_point After(std::chrono::milliseconds timeout) {
  return std::chrono::steady_clock::now() +
         std::clamp(timeout, std::chrono::milliseconds(0), kTimeoutMax);
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

Result<statcollect::stats::CpuTensor> CheckedRows(const TensorView& rows,
                                                  std::uint64_t first_column, std::size_t count,
                                                  std::span<const std::int64_t> index) {
  auto data = CheckedTensor(rows);
  if (!data.ok()) return data.status();
  STATCOLLECT_RETURN_IF_ERROR(statcollect::stats::ValidateRows(*data, first_column));
  constexpr std::size_t kRowsMax = std::size_t{1} << 20;
  const auto found = index.empty() ? static_cast<std::uint64_t>(data->shape[0]) : index.size();
  if (found != count || count > kRowsMax) {
    return Status(Code::kInvalidArgument, "record rows: found " + std::to_string(found) +
                                              " rows for " + std::to_string(count) +
                                              " tokens; expected one for each, at most " +
                                              std::to_string(kRowsMax));
  }
  for (const std::int64_t row : index) {
    if (row >= 0 && row < data->shape[0]) continue;
    return Status(Code::kInvalidArgument, "record rows: the index has row " + std::to_string(row) +
                                              "; expected one of the matrix's " +
                                              std::to_string(data->shape[0]) + " rows, from 0");
  }
  return data;
}

Agent::Impl::Parts::Parts(const ResolvedOptions& options, const Launch& launch,
                          std::unique_ptr<Transport> own_transport)
    : session(MakeSession(options, launch, clock)),
      log(&clock, {}, options.log),
      ring(MakeRing(options, session, &ring_status)),
      recorder(MakeRecorderOptions(options, ring.get()), &clock, &ledger, &waker),
      workers(static_cast<int>(options.threads)),
      transport(std::move(own_transport)),
      exporter(session,
               MakeExporterOptions(
                   options, launch, recorder.definitions(),
                   [this](const Directive& directive) { Apply(directive); },
                   [this](const char* kind, const std::string& text) {
                     (void)recorder.log().LogEvent(kind, text, {});
                   }),
               transport.get(), &ledger, &log,
               [this] {
                 if (exporter.Failed()) recorder.Refuse(kDropRejected);
                 waker.Wake();
               }),
      cuda(MakeEngineOptions(options), statcollect::stats::cuda::MakeCudaApi(), &recorder, &clock),
      cuda_captures(statcollect::stats::cuda::MakeCudaApi(),
                    [this](const CaptureTarget& target, const std::string& why) {
                      if (!target.ring) recorder.pending_captures().Miss(target, why);
                    }),
      cuda_rows(statcollect::stats::cuda::MakeCudaApi(), &recorder, &clock),
      filler(&cuda, &cuda_captures, &cuda_rows),
      ring_watch(
          &recorder, &clock, [this](const std::string& line) { log.Log(line, LogLevel::kWarning); },
          [this, level = LevelOfAll(launch)](const std::string& line) {
            log.LogOnce(line, level);
          }),
      batcher(&recorder, &exporter, &ledger, &waker, &clock, options.sketch, &filler,
              ring == nullptr ? nullptr : &ring_watch) {}

void Agent::Impl::Parts::Apply(const Directive& directive) {
  if (directive.kind == "steps") return ApplySteps(directive);
  if (directive.kind == "capture") return ApplyCapture(directive);
  if (directive.kind == "full") return ApplyFull(directive);
}

void Agent::Impl::Parts::ApplyFull(const Directive& directive) {
  if (!full_steps.Add(directive.arguments))
    log.Log("the collector announced full statistics in steps that are not valid; ignored");
}

void Agent::Impl::Parts::ApplyCapture(const Directive& directive) {
  const auto request = directive.arguments.find("request");
  const std::string id = request == directive.arguments.end() ? "" : request->second;
  auto spec = CaptureSpec::FromArguments(directive.arguments);
  if (spec.ok()) return recorder.pending_captures().Add(*std::move(spec), id);
  recorder.pending_captures().Miss(recorder.step(), id, "the collector's request",
                                   "is invalid: " + spec.status().message());
}

Status Agent::Impl::Parts::CopyValues(CapturedTensor* captured,
                                      const statcollect::stats::CpuTensor& data,
                                      const TensorView& tensor, void* stream) {
  if (tensor.device == Device::kCuda)
    return cuda_captures.Copy(captured, data, tensor.device_index, stream);
  statcollect::stats::CopyElements(data, captured->elements(), captured->data());
  captured->keeper()->Commit(captured);
  return Status::Ok();
}

void Agent::Impl::Parts::KeepInRing(const CaptureTarget& target,
                                    const statcollect::stats::CpuTensor& data,
                                    const TensorView& tensor, void* stream) {
  CapturedTensor* const kept = ring->Reserve(target, tensor.dtype, tensor.shape);
  if (kept != nullptr) (void)CopyValues(kept, data, tensor, stream);
}

void Agent::Impl::Parts::KeepValues(CaptureTarget target, const statcollect::stats::CpuTensor& data,
                                    const TensorView& tensor, void* stream) {
  if (target.ring) KeepInRing(target, data, tensor, stream);
  if (!target.send) return;
  target.ring = false;
  const std::uint64_t elements =
      CapturedElements(tensor.dtype, {tensor.shape.begin(), tensor.shape.end()}, target.bytes_max);
  CapturedTensor* const captured =
      recorder.captures().Reserve(target, elements, elements * DTypeBytes(tensor.dtype));
  if (captured == nullptr) {
    return recorder.pending_captures().Miss(
        target,
        "at most " + std::to_string(CaptureQueue::kBytesMax >> 20) +
            " MiB of values may wait to be sent; capture fewer tensors at a time, or fewer bytes");
  }
  const Status copied = CopyValues(captured, data, tensor, stream);
  if (!copied.ok()) recorder.pending_captures().Miss(target, copied.message());
  waker.Wake();
}

void Agent::Impl::Parts::ApplySteps(const Directive& directive) {
  const auto wanted = directive.arguments.find("steps");
  if (wanted == directive.arguments.end()) return;
  auto steps = StepSet::Parse(wanted->second);
  if (!steps.ok())
    return log.Log("the collector requested invalid steps: " + steps.status().message());
  const std::string text = wanted->second.empty() ? "every step" : "steps " + wanted->second;
  recorder.RecordSteps(*std::move(steps));
  (void)recorder.log().LogEvent("recording_changed",
                                "the collector requested " + text + ", from the next step on",
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
  if (left_behind_) (void)parts_.release();  // its threads hang in calls of the system, and use it
}

Status Agent::Impl::Start() {
  STATCOLLECT_RETURN_IF_ERROR(parts_->exporter.CheckSpill());
  STATCOLLECT_RETURN_IF_ERROR(parts_->ring_status);
  if (const std::string remark = parts_->exporter.SpillRemark(); !remark.empty())
    parts_->log.Log(remark);
  SayWhatIsLeft();
  parts_->exporter.Start();
  parts_->batcher.Start();
  const Status welcome =
      parts_->exporter.WaitForWelcome(After(options_.connect_timeout), options_.required);
  AddClosedAtExit(this);
  if (welcome.ok()) {
    parts_->log.LogOnce("records run '" + options_.run + "' as rank " +
                        std::to_string(launch_.rank) + " of " + std::to_string(launch_.world_size) +
                        " at " + options_.collector);
    return welcome;
  }
  if (parts_->exporter.Failed() || options_.required) return welcome;
  parts_->log.Log(
      "cannot " + welcome.message() + "; training continues, and the agent keeps trying; up to " +
          std::to_string(options_.buffer_records_max) + " records wait in memory, further ones " +
          (options_.spill.directory.empty() ? "are dropped and counted"
                                            : "in a file in " + options_.spill.directory),
      LevelOfAll(launch_));
  return Status::Ok();
}

void Agent::Impl::SayWhatIsLeft() {
  const std::string& folder = options_.spill.directory;
  if (folder.empty() || launch_.local_rank != 0) return;
  const std::size_t left = CountLeftFiles(folder);
  if (left == 0) return;
  parts_->log.LogOnce(
      "processes that have ended left " + Counted(left, "file") + " in spill_dir " + folder +
          "; to add their records to their runs: statctl move import spill " + folder,
      LogLevel::kWarning);
}

Result<statcollect::stats::CpuTensor> Agent::Impl::Open(const TensorView& tensor) {
  auto data = CheckedTensor(tensor);
  if (data.ok() && tensor.device == Device::kCuda) {
    STATCOLLECT_RETURN_IF_ERROR(parts_->cuda.Check(*data, tensor.device_index));
  }
  return data;
}

template <typename... Id>
Status Agent::Impl::ObserveAs(const TensorView& tensor, void* stream, const Id&... id) {
  const auto data = Open(tensor);
  if (!data.ok()) return data.status();
  const TensorPlace place(tensor);
  if (IsCapturing(tensor, stream)) {
    statcollect::GraphTensor graph_tensor;
    STATCOLLECT_RETURN_IF_ERROR(parts_->recorder.graphs().AddToGraph(
        id..., tensor.dtype, tensor.shape, &graph_tensor, place.recorded()));
    return AddToGraph(graph_tensor, *data, tensor, stream, place.computed());
  }
  Slot* slot = nullptr;
  std::optional<CaptureTarget> capture;
  STATCOLLECT_RETURN_IF_ERROR(
      parts_->recorder.Begin(id..., tensor.dtype, tensor.shape, &slot, &capture, place.recorded()));
  if (capture) parts_->KeepValues(*std::move(capture), *data, tensor, stream);
  if (slot == nullptr) return Status::Ok();
  return Fill(slot, *data, tensor, stream, place.computed());
}

Status Agent::Impl::Observe(const Identity& identity, const TensorView& tensor, void* stream) {
  STATCOLLECT_RETURN_IF_ERROR(CheckCall(identity, -1));
  return ObserveAs(tensor, stream, ToIdentityView(identity), identity.call < 0);
}

Status Agent::Impl::Observe(std::uint32_t handle, const TensorView& tensor, void* stream) {
  return ObserveAs(tensor, stream, handle);
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
    const TensorPlace place(item.tensor);
    if (data.ok() && IsCapturing(item.tensor, stream)) {
      note(Observe(item.handle, item.tensor, stream));
      continue;
    }
    Slot* slot = nullptr;
    std::optional<CaptureTarget> capture;
    const Status begun =
        !data.ok() ? data.status()
                   : parts_->recorder.Begin(item.handle, item.tensor.dtype, item.tensor.shape,
                                            &slot, &capture, place.recorded());
    note(begun);
    if (capture) parts_->KeepValues(*std::move(capture), *data, item.tensor, stream);
    if (slot == nullptr) continue;
    statcollect::CudaSlots::Item& listed = lists[item.tensor.device_index].emplace_back();
    listed.slot = slot;
    listed.tensor = *data;
    if (place.computed() != nullptr) listed.place = *place.computed();
  }
  for (const auto& [device, list] : lists) {
    std::size_t strided = 0;
    parts_->cuda.FillList(list, device, stream, &strided);
    for (; strided > 0; --strided) {
      note(Status(Code::kUnimplemented,
                  "observe a list of CUDA tensors: one has more dimensions than the kernels "
                  "support; observe a "
                  "contiguous copy"));
    }
  }
  return first;
}

Status Agent::Impl::AddToGraph(const statcollect::GraphTensor& graph_tensor,
                               const statcollect::stats::CpuTensor& data, const TensorView& tensor,
                               void* stream, const PlacementView* place) {
  return parts_->cuda.AddToGraph(graph_tensor, data, tensor.device_index, stream,
                                 parts_->recorder.step(), parts_->recorder.StepWanted(), place);
}

void Agent::Impl::EndStep() {
  const std::vector<int> devices = ReplayDevices();
  if (devices.empty()) return parts_->recorder.EndStep();
  Slot* gate = nullptr;
  parts_->recorder.EndStep(&gate);
  (void)Mark(gate, devices);
}

Status Agent::Impl::SetStep(std::uint64_t step) {
  const std::vector<int> devices = ReplayDevices();
  if (devices.empty()) return parts_->recorder.SetStep(step);
  Slot* gate = nullptr;
  STATCOLLECT_RETURN_IF_ERROR(parts_->recorder.SetStep(step, &gate));
  (void)Mark(gate, devices);
  return Status::Ok();
}

std::uint64_t Agent::Impl::MarkReplays() {
  const std::vector<int> devices = ReplayDevices();
  if (devices.empty()) return 0;
  return Mark(parts_->recorder.graphs().Gate(), devices);
}

std::uint64_t Agent::Impl::Mark(Slot* gate, const std::vector<int>& devices) {
  return parts_->cuda.Mark(gate, devices, parts_->recorder.step(), parts_->recorder.StepWanted());
}

Status Agent::Impl::Fill(Slot* slot, const statcollect::stats::CpuTensor& data,
                         const TensorView& tensor, void* stream, const PlacementView* place) {
  if (tensor.device == Device::kCuda)
    return parts_->cuda.Fill(slot, data, tensor.device_index, stream, place);
  slot->stats = statcollect::stats::ComputeCpu(data, slot->sketch, slot->samples,
                                               &slot->sample_count, &parts_->workers, place);
  if (slot->exponents != nullptr)
    statcollect::stats::CountExponents(data, kExponentLowest, *slot->exponents);
  parts_->recorder.Commit(slot);
  return Status::Ok();
}

Status Agent::Impl::RecordRows(const TokenRows& rows, std::optional<std::uint64_t> step) {
  if (!step && !parts_->recorder.StepWanted()) return Status::Ok();
  const std::size_t count = rows.keys.size();
  if (rows.positions.size() != count) {
    return Status(Code::kInvalidArgument, "record rows of '" + Printable(rows.tap) + "': found " +
                                              std::to_string(count) + " keys and " +
                                              std::to_string(rows.positions.size()) +
                                              " positions; expected as many");
  }
  const auto data = CheckedRows(rows.rows, rows.first_column, count, rows.index);
  if (!data.ok()) return data.status();
  const std::size_t components =
      static_cast<std::size_t>(rows.rows.shape[1]) * (IsComplex(rows.rows.dtype) ? 2 : 1);
  statcollect::TokenRecord record{.tap = std::string(rows.tap),
                                  .call = rows.call,
                                  .dtype = rows.rows.dtype,
                                  .columns = static_cast<std::uint32_t>(components),
                                  .first_column = rows.first_column};
  record.rows.resize(count);
  for (std::size_t i = 0; i < count; ++i) {
    record.rows[i].key = rows.keys[i];
    record.rows[i].position = rows.positions[i];
  }
  const std::int64_t* const index = rows.index.empty() ? nullptr : rows.index.data();
  if (rows.rows.device == Device::kCuda) {
    return parts_->cuda_rows.Record(record, step, *data, index, rows.rows.device_index,
                                    rows.stream);
  }
  std::vector<statcollect::RowStats> computed(count);
  statcollect::stats::ComputeRows(*data, rows.first_column, computed, &parts_->workers, index);
  for (std::size_t i = 0; i < count; ++i) record.rows[i].stats = computed[i];
  return parts_->recorder.log().LogTokens(record, step);
}

Result<std::uint32_t> Agent::Impl::Intern(const Identity& identity) {
  STATCOLLECT_RETURN_IF_ERROR(CheckCall(identity, 0));
  return parts_->recorder.Intern(ToIdentityView(identity));
}

Status Agent::Impl::Flush(std::chrono::milliseconds timeout) {
  const TimePoint deadline = After(timeout);
  const bool marked = parts_->cuda.WaitMarked(MarkReplays(), deadline);
  parts_->batcher.Flush();
  const bool settled = parts_->ledger.WaitSettled(deadline) && marked;
  if (const Status failure = parts_->exporter.failure(); !failure.ok()) return failure;
  if (settled) return Status::Ok();
  return Status(Code::kDeadlineExceeded,
                "flush: " + std::to_string(counters().pending) + " records" +
                    (marked ? "" : " and the results of running CUDA graphs") +
                    " are still pending after " + std::to_string(timeout.count()) +
                    " ms; expected 0; check that the collector at " + options_.collector +
                    " is reachable, or wait longer");
}

Status Agent::Impl::Close(std::chrono::milliseconds timeout, bool goodbye) {
  MutexLock one_at_a_time(close_mutex_);
  if (std::exchange(closed_, true)) return close_status_;
  const TimePoint deadline =
      After(timeout - std::clamp(timeout / 5, std::chrono::milliseconds(0), kEndingMin));
  const std::uint64_t before = counters().dropped();
  (void)parts_->cuda.WaitMarked(MarkReplays(), deadline);  // what comes after the refusal is lost
  parts_->recorder.pending_captures().End();
  parts_->recorder.Refuse(kDropClosed);
  if (!EndThreads(deadline, timeout, goodbye)) return close_status_;
  if (parts_->ring != nullptr) parts_->ring->RemoveFile();
  parts_->cuda_captures.Abandon();
  parts_->cuda_rows.Abandon();
  parts_->recorder.DropRest(kDropClosed);
  parts_->cuda.Abandon();
  const std::uint64_t lost = counters().dropped() - before;
  if (lost > 0 && !IsFatal(close_status_.code())) {
    const std::string text =
        "close: " + std::to_string(lost) + " records were not stored within " +
        std::to_string(timeout.count()) +
        " ms and are counted as dropped; check that the collector at " + options_.collector +
        " is reachable, give close a longer timeout, or set a local folder for such records "
        "(STATAGENT_SPILL_DIR)";
    parts_->log.LogLoss(text);
    close_status_ = Status(Code::kDeadlineExceeded,
                           text + (spilled() > 0 ? "; " + close_status_.message() : std::string()));
  }
  parts_->log.FlushLosses();
  return close_status_;
}

Status Agent::Impl::CloseUnused(std::chrono::milliseconds timeout) {
  if (counters().produced == 0) parts_->exporter.MarkUnused();
  return Close(timeout);
}

bool Agent::Impl::EndThreads(TimePoint deadline, std::chrono::milliseconds timeout, bool goodbye) {
  struct Ending {
    std::atomic<int> stopped = 0;
    Status status;
  };
  const auto ending = std::make_shared<Ending>();
  const auto end = [ending, parts = parts_.get(), deadline, goodbye, wait = timeout.count() > 0] {
    parts->batcher.Stop(deadline);
    ending->stopped = 1;
    ending->status = parts->exporter.Finish(wait ? deadline : TimePoint::min(), goodbye);
  };
  const auto progress = [&] {
    return parts_->exporter.activity() + static_cast<std::uint64_t>(ending->stopped);
  };
  if (statcollect::RunBounded(end, deadline, std::clamp(timeout / 5, kEndingMin, kEndingMax),
                              progress)) {
    close_status_ = ending->status;
    return true;
  }
  left_behind_ = true;
  parts_->exporter.Leave();
  const std::string where =
      options_.spill.directory.empty() ? "the system" : "the disk of " + options_.spill.directory;
  close_status_ =
      Status(Code::kDeadlineExceeded,
             "close: " + where + " does not answer; " + std::to_string(counters().pending) +
                 " records were neither stored nor counted as dropped; what a spill file holds "
                 "can be sent with: statctl move import spill");
  parts_->log.LogFinal(close_status_.message());
  return false;
}

void Agent::Impl::CloseAtExit() noexcept {
  if (!Inert()) (void)Close(kCloseAtExit);
}

}  // namespace statagent
