#include "client/imports/record_batcher.h"

#include <algorithm>
#include <utility>

#include "common/names.h"
#include "common/saturating.h"

namespace statcollect::client {
namespace {

constexpr std::size_t kBatchRecords = 4096;
constexpr std::size_t kBatchBytes = std::size_t{1} << 20;  // far from the 4 MiB of a message
constexpr std::size_t kRecordBytes = 150;                  // about, without samples
constexpr std::uint64_t kStepsMax = std::uint64_t{1} << 62;
constexpr std::size_t kDefinitionsMax = std::size_t{1}
                                        << 20;  // of each sort, that a collector takes in a session

Status TooMany(const char* what) {
  return {Code::kResourceExhausted,
          "the dump has more than " + std::to_string(kDefinitionsMax) + " different " + what +
              "; expected names that repeat from step to step; import fewer steps with --steps"};
}

}  // namespace

RecordBatcher::RecordBatcher(BatchOutput& output, formats::Tally& tally, const Clock& clock,
                             std::function<void()> progress)
    : output_(output), tally_(tally), clock_(clock), progress_(std::move(progress)) {}

std::size_t RecordBatcher::KeyHash::operator()(const TensorKey& key) const {
  const std::hash<std::string> hash;
  std::size_t h = hash(key.name) * 31 + hash(key.output_path);
  for (const std::size_t part : {static_cast<std::size_t>(key.kind), std::size_t{key.micro_batch},
                                 std::size_t{key.call}, static_cast<std::size_t>(key.mode)})
    h = h * 0x9e3779b97f4a7c15u + part;
  return h;
}

Result<std::uint32_t> RecordBatcher::Intern(const TensorDef& def) {
  const auto [found, is_new] =
      activations_.try_emplace(def.key, static_cast<std::uint32_t>(activations_.size()));
  if (!is_new) return found->second;
  if (activations_.size() > kDefinitionsMax) return TooMany("tensors");
  batch_.activations.push_back(def);
  batch_.activations.back().id = found->second;
  seen_in_.push_back(0);
  batch_bytes_ += 64 + def.key.name.size() + def.key.output_path.size() + def.parent.size() +
                  def.class_name.size();
  return found->second;
}

Result<std::uint32_t> RecordBatcher::Intern(const Layout& layout) {
  const auto [found, is_new] = layouts_.try_emplace(
      LayoutKey(layout.dtype, layout.shape, layout.absent, layout.untrusted, layout.hash_kind),
      static_cast<std::uint32_t>(layouts_.size()));
  if (!is_new) return found->second;
  if (layouts_.size() > kDefinitionsMax) return TooMany("shapes");
  batch_.layouts.push_back(layout);
  batch_.layouts.back().id = found->second;
  batch_bytes_ += 32 + 10 * layout.shape.size();
  return found->second;
}

Status RecordBatcher::EnterStep(std::uint64_t step) {
  if (last_step_ == step) return Status::Ok();
  if (last_step_ && step < *last_step_)
    return {Code::kInternal,
            "step " + std::to_string(step) + " after step " + std::to_string(*last_step_)};
  if (step >= kStepsMax)
    return {Code::kOutOfRange, "step " + std::to_string(step) + "; expected less than 2^62"};
  if (!first_step_) first_step_ = step;
  last_step_ = step;
  order_ = micro_batches_ = 0;
  ++steps_;
  return Status::Ok();
}

Status RecordBatcher::DoTake(formats::Observation o) {
  STATCOLLECT_RETURN_IF_ERROR(EnterStep(o.step));
  const auto activation = Intern(o.def);
  if (!activation.ok()) return activation.status();
  if (seen_in_[*activation] == o.step + 1) {
    tally_.Skip("repeated in a step");
    return Status::Ok();
  }
  seen_in_[*activation] = o.step + 1;
  if (!batch_.stats.empty() && batch_.stats.sketch_width != o.sketch.size())
    STATCOLLECT_RETURN_IF_ERROR(Flush());  // a batch has one width
  const auto layout = Intern(o.layout);
  if (!layout.ok()) return layout.status();
  StatColumns& columns = batch_.stats;
  columns.sketch_width = static_cast<std::uint32_t>(o.sketch.size());
  columns.activation.push_back(*activation);
  columns.layout.push_back(*layout);
  columns.step.push_back(o.step);
  columns.order.push_back(order_++);
  columns.stats.push_back(o.stats);
  columns.sketch.insert(columns.sketch.end(), o.sketch.begin(), o.sketch.end());
  columns.sample_count.push_back(static_cast<std::uint32_t>(o.samples.size()));
  columns.samples.insert(columns.samples.end(), o.samples.begin(), o.samples.end());
  batch_bytes_ += kRecordBytes + 8 * (o.samples.size() + o.sketch.size());
  micro_batches_ = std::max(micro_batches_, SaturatingAdd(o.def.key.micro_batch, 1));
  ++records_;
  if (progress_) progress_();
  return columns.size() >= kBatchRecords || batch_bytes_ >= kBatchBytes ? Flush() : Status::Ok();
}

Status RecordBatcher::DoTakeScalar(ScalarRecord scalar) {
  STATCOLLECT_RETURN_IF_ERROR(EnterStep(scalar.step));
  batch_bytes_ += 32 + scalar.name.size();
  batch_.scalars.push_back(std::move(scalar));
  ++records_;
  if (progress_) progress_();
  const bool full = batch_.scalars.size() >= kBatchRecords || batch_bytes_ >= kBatchBytes;
  return full ? Flush() : Status::Ok();
}

// A step without importable records has no step end.
Status RecordBatcher::DoEndStep(std::uint64_t step) {
  if (last_step_ != step) return Status::Ok();
  batch_.steps.push_back({step, clock_.UnixNanos(), micro_batches_});
  return batch_.steps.size() >= kBatchRecords ? Flush() : Status::Ok();
}

Status RecordBatcher::Flush() {
  if (batch_.records() == 0) return Status::Ok();
  batch_bytes_ = 0;
  return output_.Send(std::exchange(batch_, {}));
}

}  // namespace statcollect::client
