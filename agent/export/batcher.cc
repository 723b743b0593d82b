#include "agent/export/batcher.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <utility>
#include <vector>

#include "agent/export/worker_thread.h"
#include "common/names.h"
#include "common/shape.h"

namespace statcollect {
namespace {

using TimePoint = Batcher::TimePoint;

// How soon to look again for a slot that is being filled.
constexpr std::chrono::milliseconds kRetry{1};

// Upper bounds of encoded sizes.
constexpr std::size_t kRecordBytes = 160;
constexpr std::size_t kDefinitionBytes = 96;
constexpr std::size_t kLayoutBytes = 64;
constexpr std::size_t kDimensionBytes = 10;
constexpr std::size_t kBatchOverheadBytes = 512;
constexpr std::size_t kNormBytes = 64;

constexpr char kNormName[] = "grad_norm";

std::size_t BytesOf(const TensorDef& def) {
  return kDefinitionBytes + def.key.name.size() + def.key.output_path.size() + def.parent.size() +
         def.class_name.size();
}

std::size_t BytesOf(const Layout& layout) {
  std::size_t numbers = layout.shape.size();
  if (layout.placement) {
    const Placement& place = *layout.placement;
    numbers += place.global_shape.size() + place.boxes.size() + place.ranges.size();
  }
  return kLayoutBytes + numbers * kDimensionBytes;
}

template <typename Defs>
std::size_t BytesOfAll(const Defs& defs) {
  std::size_t bytes = 0;
  for (const auto& def : defs) bytes += BytesOf(def);
  return bytes;
}

// Puts a small record where it belongs in a batch.
struct AddTo {
  RecordBatch& batch;
  void operator()(ScalarRecord&& r) const { batch.scalars.push_back(std::move(r)); }
  void operator()(EventRecord&& r) const { batch.events.push_back(std::move(r)); }
  void operator()(MemoryRecord&& r) const { batch.memory.push_back(std::move(r)); }
  void operator()(DensityRecord&& r) const { batch.densities.push_back(std::move(r)); }
  void operator()(SettingRecord&& r) const { batch.settings.push_back(std::move(r)); }
  void operator()(ExponentRecord&& r) const { batch.exponents.push_back(std::move(r)); }
  void operator()(TokenRecord&& r) const { batch.tokens.push_back(std::move(r)); }
  void operator()(const StepRecord& r) const { batch.steps.push_back(r); }
};

// "captured blocks.1.ln2 (output): f32 16x64x128, 131,072 elements" and the numbers.
EventRecord CaptureEvent(const CaptureQueue::Next& next, const TensorDef& def, const Layout& layout,
                         std::int64_t unix_nanos) {
  std::string shape;
  for (const std::int64_t size : layout.shape)
    shape += (shape.empty() ? "" : "x") + std::to_string(size);
  const std::uint64_t numel = NumelOf(layout.shape);
  const std::string kind(Name(def.key.kind));
  std::string text = "captured " + def.key.name + " (" + kind +
                     "): " + std::string(Name(layout.dtype)) + (shape.empty() ? "" : " " + shape) +
                     ", ";
  text += next.elements < numel ? "the first " + std::to_string(next.elements) + " of " +
                                      std::to_string(numel) + " elements"
                                : std::to_string(numel) + " elements";
  EventRecord event{.kind = "capture",
                    .step = next.target.step,
                    .unix_nanos = unix_nanos,
                    .text = std::move(text),
                    .fields = {{"activation", def.key.name},
                               {"kind", kind},
                               {"output_path", def.key.output_path},
                               {"micro_batch", std::to_string(def.key.micro_batch)},
                               {"call", std::to_string(def.key.call)},
                               {"elements", std::to_string(next.elements)},
                               {"numel", std::to_string(numel)}}};
  if (!next.target.requests.empty()) event.fields["request"] = next.target.requests;
  return event;
}

// Reserves memory for all tensors once, instead of growing and copying.
void Reserve(std::size_t tensors, StatColumns* columns) {
  columns->activation.reserve(tensors);
  columns->layout.reserve(tensors);
  columns->step.reserve(tensors);
  columns->order.reserve(tensors);
  columns->stats.reserve(tensors);
  columns->sketch.reserve(tensors * columns->sketch_width);
  columns->sample_count.reserve(tensors);
}

bool IsReported(const std::string& cause) {
  return cause == kDropBufferFull || cause == kDropTableFull || cause == kDropDeviceError ||
         cause == kDropGraphCapture || cause == kDropGraphReplay || cause == kDropCaptureMemory ||
         cause == kDropCaptureStrides || cause == kDropCaptureRefused;
}

}  // namespace

// A batch while it grows.
struct Batcher::Builder {
  RecordBatch batch;
  std::size_t bytes = kBatchOverheadBytes;
  std::size_t bytes_max = 0;
  bool full = false;  // what comes next must not overtake what does not fit

  std::size_t records() const { return batch.records(); }
  // A first record is always taken, so that a small limit cannot stop everything.
  bool Fits(std::size_t more) const { return records() == 0 || bytes + more <= bytes_max; }
  std::size_t room() const {
    return records() == 0 ? ~std::size_t{0} : bytes_max - std::min(bytes, bytes_max);
  }
};

Batcher::Batcher(Recorder* recorder, BatchSink* sink, Ledger* ledger, Waker* waker,
                 const Clock* clock, std::uint32_t sketch, SlotFiller* filler, RingWatch* watch)
    : recorder_(recorder),
      sink_(sink),
      ledger_(ledger),
      waker_(waker),
      clock_(clock),
      sketch_(sketch),
      filler_(filler),
      watch_(watch) {}

Batcher::~Batcher() { Stop(TimePoint::min()); }

TimePoint Batcher::Poll() {
  filling_ = filler_ != nullptr && filler_->Poll() > 0;
  const TimePoint tend_at = sink_->Tend();
  const TimePoint next = std::min(Round(), tend_at);
  return filling_ ? std::min(next, clock_->Now() + kFillerInterval) : next;
}

TimePoint Batcher::Round() {
  if (sink_->Failed()) {
    Discard();
    return Empty() ? TimePoint::max() : clock_->Now() + kBatchAge;  // a slot may still be filled
  }
  const TimePoint now = clock_->Now();
  if (flush_.exchange(false)) flushing_ = true;
  if (recorder_->captures().HasReady() && sink_->TakesCaptures() == false) RefuseCaptures();
  const TimePoint report_at = ReportLosses(now);
  if (Empty()) {
    oldest_.reset();
    flushing_ = false;
    return report_at;
  }
  if (!oldest_) oldest_ = now;
  if (const TimePoint due = DueAt(now); now < due) return std::min(report_at, due);
  if (!sink_->HasRoom()) return report_at;
  Builder builder;
  builder.bytes_max = sink_->BatchBytesMax();
  // Values wait for a slot that is being filled, or for the collector to say that it takes them.
  if (!Assemble(&builder)) return now + (sink_->TakesCaptures() ? kRetry : kBatchAge);
  oldest_.reset();
  // If a step end is left over because the batch was full, the next batch follows immediately.
  last_batch_ = !filling_ && recorder_->side().HasStepEnd() ? std::nullopt : std::optional(now);
  sink_->Submit(std::move(builder.batch), builder.bytes);
  return now;
}

bool Batcher::Empty() {
  return reports_.empty() && recorder_->side().size() == 0 &&
         recorder_->ring().head() == recorder_->ring().tail() && recorder_->captures().empty();
}

TimePoint Batcher::DueAt(TimePoint now) {
  const std::uint64_t waiting =
      recorder_->ring().tail() - recorder_->ring().head() + recorder_->side().size();
  if (flushing_ || closing_ || waiting >= kBatchRecords ||
      (recorder_->captures().HasReady() && sink_->TakesCaptures() == true))
    return now;
  const TimePoint aged = *oldest_ + kBatchAge;
  if (filling_ || !recorder_->side().HasStepEnd()) return aged;
  // A ring that is full loses the steps before one that is judged late.
  if (watch_ != nullptr && recorder_->tensor_ring()->crowded()) return now;
  return last_batch_ ? std::min(aged, *last_batch_ + kStepSpacing) : now;
}

TimePoint Batcher::ReportLosses(TimePoint now) {
  if (!reports_.empty()) return TimePoint::max();
  const bool early = last_report_ && now - *last_report_ < kLossReportInterval;
  for (const auto& [cause, dropped] : ledger_->Snapshot().dropped_by_cause) {
    std::uint64_t& reported = reported_[cause];
    if (!IsReported(cause) || dropped == reported) continue;
    if (early && !closing_) return *last_report_ + kLossReportInterval;
    const std::string count = std::to_string(dropped - std::exchange(reported, dropped));
    reports_.push_back({.kind = "records_dropped",
                        .step = last_step_,
                        .unix_nanos = clock_->UnixNanos(),
                        .text = count + " records were lost before they could be sent: " + cause,
                        .fields = {{"cause", cause}, {"count", count}}});
    ledger_->Produce();
    last_report_ = now;
  }
  return TimePoint::max();
}

bool Batcher::Assemble(Builder* builder) {
  builder->batch.stats.sketch_width = sketch_;
  Reserve(std::min<std::size_t>(kBatchRecords, recorder_->ring().tail() - recorder_->ring().head()),
          &builder->batch.stats);
  while (!reports_.empty() && builder->Fits(EncodedBytesMax(reports_.front()))) {
    builder->bytes += EncodedBytesMax(reports_.front());
    builder->batch.events.push_back(std::move(reports_.front()));
    reports_.pop_front();
  }
  TakeCaptures(builder);
  while (!builder->full && builder->records() < kBatchRecords &&
         (TakeSide(builder) || TakeSlot(builder))) {
  }
  return builder->records() > 0;
}

bool Batcher::TakeSide(Builder* builder) {
  if (recorder_->side().front_ticket() > recorder_->ring().head())
    return false;  // asked for every record
  const std::size_t room = builder->room() - std::min(builder->room(), kNormBytes);
  // Step ends wait for values only after a collector has accepted captures: its first answer may
  // take hours.
  const auto held_step = sink_->TakesCaptures() ? recorder_->captures().OldestStep() : std::nullopt;
  auto entry = recorder_->side().PopIf(recorder_->ring().head(), room, held_step, &builder->full);
  if (!entry) return false;
  builder->bytes += entry->bytes;
  if (const auto* step = std::get_if<StepRecord>(&entry->record)) {
    last_step_ = step->step;
    AddNorm(step->step, builder);
    if (watch_ != nullptr) WatchStep(step->step);
  } else if (const auto* scalar = std::get_if<ScalarRecord>(&entry->record)) {
    program_logs_norm_ = program_logs_norm_ || scalar->name == kNormName;
    if (watch_ != nullptr) watch_->AddScalar(*scalar);
  } else if (const auto* exponents = std::get_if<ExponentRecord>(&entry->record)) {
    // Its tensor was reserved before it, so that it has been sent and defined.
    assert(exponents->activation < activations_sent_ && exponents->layout < layouts_sent_);
    (void)exponents;
  }
  std::visit(AddTo{builder->batch}, std::move(entry->record));
  return true;
}

void Batcher::WatchStep(std::uint64_t step) {
  auto event = watch_->EndStep(step);
  if (!event) return;
  reports_.push_back(*std::move(event));
  ledger_->Produce();
}

void Batcher::AddToNorm(const ObservedTensor& tensor) {
  if (tensor.activation >= is_gradient_.size() || !is_gradient_[tensor.activation]) return;
  double& sum = norm_squared_ ? *norm_squared_ : norm_squared_.emplace(0);
  const TensorStats& stats = tensor.stats;
  if (stats.has_finite) sum += stats.l2 * stats.l2;
  if (stats.pos_inf + stats.neg_inf > 0) sum += std::numeric_limits<double>::infinity();
  if (stats.nan > 0) sum = std::numeric_limits<double>::quiet_NaN();
}

void Batcher::AddNorm(std::uint64_t step, Builder* builder) {
  const auto squared = std::exchange(norm_squared_, std::nullopt);
  std::uint64_t lost = 0;
  for (const auto& [cause, dropped] : ledger_->Snapshot().dropped_by_cause) lost += dropped;
  const bool whole = std::exchange(lost_before_, lost) == lost;
  if (!squared || !whole || program_logs_norm_) return;
  builder->bytes += kNormBytes;
  builder->batch.scalars.push_back(
      {.name = kNormName, .step = step, .micro_batch = 0, .value = std::sqrt(*squared)});
  ledger_->Produce();
}

bool Batcher::Define(std::uint32_t activation, std::uint32_t layout, std::size_t bytes,
                     Builder* builder) {
  std::vector<TensorDef> activations;
  std::vector<Layout> layouts;
  if (activation >= activations_sent_)
    activations = recorder_->definitions().Activations(activations_sent_, activation);
  if (layout >= layouts_sent_) layouts = recorder_->definitions().Layouts(layouts_sent_, layout);
  bytes += BytesOfAll(activations) + BytesOfAll(layouts);
  if (!builder->Fits(bytes)) return false;
  builder->bytes += bytes;
  activations_sent_ += static_cast<std::uint32_t>(activations.size());
  for (const TensorDef& def : activations) {
    is_gradient_.push_back(def.key.kind == Kind::kWeightGrad && def.key.call == 0);
    if (watch_ != nullptr) watch_->Define(def);
  }
  layouts_sent_ += static_cast<std::uint32_t>(layouts.size());
  std::move(activations.begin(), activations.end(), std::back_inserter(builder->batch.activations));
  std::move(layouts.begin(), layouts.end(), std::back_inserter(builder->batch.layouts));
  return true;
}

void Batcher::TakeCaptures(Builder* builder) {
  if (sink_->TakesCaptures() != true) return;
  std::size_t taken = 0;
  while (taken < CaptureQueue::kChunkBytes && recorder_->captures().HasReady()) {
    const std::size_t bytes = recorder_->captures().Peek().bytes;
    if (taken > 0 && taken + bytes > CaptureQueue::kChunkBytes) return;
    if (!TakeCapture(builder)) return;
    taken += bytes + kRecordBytes;
  }
}

bool Batcher::TakeCapture(Builder* builder) {
  CaptureQueue& captures = recorder_->captures();
  const CaptureQueue::Next next = captures.Peek();
  const auto [activation, layout] = std::pair(next.target.activation, next.target.layout);
  EventRecord event;
  if (next.last) {
    event =
        CaptureEvent(next, recorder_->definitions().Activations(activation, activation).front(),
                     recorder_->definitions().Layouts(layout, layout).front(), clock_->UnixNanos());
  }
  if (!Define(activation, layout, kRecordBytes + next.bytes + EncodedBytesMax(event), builder))
    return false;
  builder->batch.captures.push_back(captures.Pop());
  if (!next.last) return true;
  builder->batch.events.push_back(std::move(event));
  ledger_->Produce();
  return true;
}

void Batcher::RefuseCaptures() {
  CaptureQueue& captures = recorder_->captures();
  while (captures.HasReady()) {
    const CaptureQueue::Next next = captures.Peek();
    (void)captures.Pop();
    ledger_->Drop(kDropCaptureRefused);
    if (!next.last) continue;
    recorder_->pending_captures().Miss(
        next.target, "the collector's release does not support captures; upgrade statcollectord");
  }
}

bool Batcher::TakeSlot(Builder* builder) {
  const Slot* slot = recorder_->ring().Front();
  if (slot == nullptr) return false;
  if (!slot->gate) {
    if (!AddTensor(*slot, builder)) return false;
    recorder_->ring().Release();
    return true;
  }
  if (const ObservedTensor* replayed = filler_->FrontReplayed(*slot->gate)) {
    if (!AddTensor(*replayed, builder)) return false;
    filler_->PopReplayed();
    return true;
  }
  filler_->PassGate(*slot->gate);
  recorder_->ring().Release();
  return true;
}

bool Batcher::AddTensor(const ObservedTensor& tensor, Builder* builder) {
  const std::size_t bytes =
      kRecordBytes + (tensor.sketch.size() + tensor.sample_count) * sizeof(double);
  if (!Define(tensor.activation, tensor.layout, bytes, builder)) return false;
  AddToNorm(tensor);
  if (watch_ != nullptr) watch_->AddTensor(tensor);

  StatColumns& columns = builder->batch.stats;
  columns.activation.push_back(tensor.activation);
  columns.layout.push_back(tensor.layout);
  columns.step.push_back(tensor.step);
  columns.order.push_back(tensor.order);
  columns.stats.push_back(tensor.stats);
  columns.sketch.insert(columns.sketch.end(), tensor.sketch.begin(), tensor.sketch.end());
  columns.sample_count.push_back(tensor.sample_count);
  columns.samples.insert(columns.samples.end(), tensor.samples.begin(),
                         tensor.samples.begin() + tensor.sample_count);
  last_step_ = tensor.step;
  return true;
}

void Batcher::Discard() {
  std::uint64_t lost = std::exchange(reports_, {}).size() + recorder_->side().Clear();
  while (const Slot* slot = recorder_->ring().Front()) {
    if (slot->gate) {
      for (; filler_->FrontReplayed(*slot->gate) != nullptr; ++lost) filler_->PopReplayed();
      filler_->PassGate(*slot->gate);
    } else {
      ++lost;
    }
    recorder_->ring().Release();
  }
  for (; recorder_->captures().HasReady(); ++lost) (void)recorder_->captures().Pop();
  ledger_->Drop(kDropRejected, lost);
}

void Batcher::Start() {
  thread_ = StartWorker("statagent-batch", [this] { Run(); });
}

void Batcher::Run() {
  while (true) {
    const bool closing = closing_;  // read first, so that the last round sees it too
    const TimePoint stop_at = stop_at_;
    if (clock_->Now() >= stop_at) return;
    const TimePoint next = std::min(Poll(), stop_at);
    if (closing && Empty()) return;
    waker_->WaitUntil(next);
  }
}

void Batcher::Flush() {
  flush_ = true;
  waker_->Wake();
}

void Batcher::Stop(TimePoint deadline) {
  if (!thread_.joinable()) return;
  stop_at_ = deadline;
  closing_ = true;
  waker_->Wake();
  thread_.join();
  ledger_->Drop(kDropClosed, std::exchange(reports_, {}).size());
}

}  // namespace statcollect
