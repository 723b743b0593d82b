#include "agent/export/ring_watch.h"

#include <cmath>
#include <cstdio>
#include <utility>

#include "common/byte_size.h"
#include "common/loss_names.h"
#include "common/names.h"
#include "common/text.h"

namespace statcollect {
namespace {

// The defaults of the collector's alarms.
constexpr SpikeLimits kLossSpike{.warmup = 10, .factor = 3, .spreads = 10};
constexpr SpikeLimits kUpdateSpike{.warmup = 10, .factor = 2, .spreads = 10};
constexpr std::size_t kLossesMax = 256;  // more are not watched

std::string Short(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.4g", Unsigned(value));
  return text;
}

std::string SizeText(std::uint64_t bytes) {
  return bytes < std::uint64_t{1} << 20 ? Counted(bytes, "byte") : Mebibytes(bytes);
}

// "45 of 120 tensors whole and the first rows of 75, 10 MiB of 80 MiB".
std::string KeptText(const RingPlan::Kept& kept) {
  std::string text =
      std::to_string(kept.whole) + " of " + Counted(kept.tensors, "tensor") + " whole";
  if (kept.in_part > 0) text += " and the first rows of " + std::to_string(kept.in_part);
  return text + ", " + SizeText(kept.bytes) + " of " + SizeText(kept.of_bytes);
}

std::string Jumped(double value, const SpikeRule& rule) {
  return Short(value) + ", " + Short(value / rule.median()) + " times its running median";
}

}  // namespace

void RingWatch::AddTensor(const ObservedTensor& tensor) {
  const TensorDef& def = defs_[tensor.activation];
  NoteNonfinite(def, tensor);
  if (def.key.kind == Kind::kWeight && def.key.mode == Mode::kTrain)
    update_.Add(tensor.activation, tensor.step, tensor.stats, tensor.sketch);
}

void RingWatch::NoteNonfinite(const TensorDef& def, const ObservedTensor& tensor) {
  const TensorStats& stats = tensor.stats;
  if (masks_.size() <= tensor.activation) masks_.resize(tensor.activation + 1);
  char& mask = masks_[tensor.activation];
  if (mask == 0) mask = stats.neg_inf > 0 ? 2 : 1;  // as the alarms: -inf from the start is a mask
  if (stats.nan == 0 && stats.pos_inf == 0 && (stats.neg_inf == 0 || mask == 2)) return;
  mask = 1;
  causes_.try_emplace(stats.nan > 0 ? "nan" : "overflow",
                      (stats.nan > 0 ? "NaN in " : "infinities in ") +
                          std::string(Name(def.key.kind)) + " " + Printable(def.key.name));
}

void RingWatch::AddScalar(const ScalarRecord& scalar) {
  if (!IsLoss(scalar.name)) return;
  const std::string name = Printable(scalar.name);
  if (!std::isfinite(scalar.value)) {
    causes_.try_emplace("loss_not_finite", name + " is " + Short(scalar.value));
    return;
  }
  if (losses_.size() >= kLossesMax && !losses_.contains(scalar.name)) return;
  SpikeRule& rule = losses_[scalar.name];
  (void)rule.Add(scalar.value, kLossSpike);
  if (rule.spike()) causes_.try_emplace("loss_spike", name + " is " + Jumped(scalar.value, rule));
}

// As RankRules::JudgeUpdate in the collector.
void RingWatch::NoteUpdate() {
  const auto norm = update_.EndStep();
  if (!norm) return;
  if (std::exchange(updated_, update_.weights()) != update_.weights()) updates_.Restart();
  (void)updates_.Add(*norm, kUpdateSpike);
  if (updates_.spike())
    causes_.try_emplace("update_norm",
                        "the update moved the weights by about " + Jumped(*norm, updates_));
}

void RingWatch::SayKept() {
  const auto kept = kept_said_ ? std::nullopt : recorder_->tensor_ring()->kept();
  if (!kept) return;
  kept_said_ = true;
  if (kept->whole < kept->tensors)
    say_kept_("the ring has room for this of each step: " + KeptText(*kept) +
              "; name fewer tensors or give it more memory to keep them whole");
}

std::optional<EventRecord> RingWatch::EndStep(std::uint64_t step) {
  SayKept();
  NoteUpdate();
  const auto causes = std::exchange(causes_, {});
  const auto before = std::exchange(active_, {});
  std::string cause, why;
  for (const auto& [name, sentence] : causes) {
    active_.insert(name);
    if (before.contains(name)) continue;
    cause += (cause.empty() ? "" : ",") + name;
    why += (why.empty() ? "" : "; ") + sentence;
  }
  std::optional<EventRecord> event;
  if (!cause.empty() && writes_ < kWritesMax) event = Write(step, cause, why);
  recorder_->tensor_ring()->Judged(step);
  return event;
}

EventRecord RingWatch::Write(std::uint64_t step, const std::string& cause, const std::string& why) {
  const TensorRing::Written written = recorder_->tensor_ring()->Write(step, &recorder_->captures());
  ++writes_;
  const std::uint64_t left_out = written.missing + written.refused;
  std::string text = "step " + std::to_string(step) + ": " + why + "; ";
  if (written.tensors == 0) {
    text += "the ring held no tensor of it and the steps before";
  } else {
    text += written.first_step == written.last_step
                ? "step " + std::to_string(written.first_step)
                : "steps " + std::to_string(written.first_step) + "-" +
                      std::to_string(written.last_step);
    text += " of the ring written as captures: " + Counted(written.tensors, "tensor") + ", " +
            SizeText(written.bytes);
  }
  const auto kept = recorder_->tensor_ring()->kept();
  if (kept && kept->whole < kept->tensors) text += "; of each step " + KeptText(*kept);
  if (left_out > 0) text += "; " + Counted(left_out, "tensor") + " had no room";
  if (writes_ == kWritesMax) text += "; this was the last time in this launch";
  say_written_(text + "; statctl values list shows them");
  return {.kind = "ring_written",
          .step = step,
          .unix_nanos = clock_->UnixNanos(),
          .text = text,
          .fields = {{"cause", cause},
                     {"tensors", std::to_string(written.tensors)},
                     {"bytes", std::to_string(written.bytes)},
                     {"missing", std::to_string(left_out)}}};
}

}  // namespace statcollect
