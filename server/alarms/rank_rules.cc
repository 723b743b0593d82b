#include "server/alarms/rank_rules.h"

#include <algorithm>
#include <cmath>
#include <tuple>
#include <utility>

#include <fmt/format.h>

#include "common/names.h"
#include "common/saturating.h"

namespace statcollect::alarms {
namespace {

constexpr double kZerosHysteresis = 0.98;      // of the fraction at which a ReLU is dead
constexpr double kQuietHysteresis = 10;        // times the vanishing ratio
constexpr std::uint32_t kOverflowsMax = 1000;  // reported per rank
constexpr std::size_t kFoundInfMax = 64;
constexpr std::size_t kNamed = 5;  // further activations of a finding

bool IsGradient(Kind kind) {
  return kind == Kind::kGradOutput || kind == Kind::kGradInput || kind == Kind::kWeightGrad ||
         kind == Kind::kInspectGrad;
}
bool IsRelu(const std::string& class_name) {
  return class_name == "ReLU" || class_name == "ReLU6" || class_name == "Threshold";
}

std::uint64_t Mix(std::uint64_t x) {
  x ^= x >> 31;
  x *= 0x7fb5d329728ea185u;
  x ^= x >> 27;
  x *= 0x81dadef4bc2dd44du;
  return x ^ (x >> 33);
}
std::uint64_t HashOf(std::string_view text, std::uint64_t seed) {
  std::uint64_t hash = seed;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return Mix(hash);
}

std::string SubjectOf(const TensorDef& def) {
  std::string text = fmt::format("{} {}", Name(def.key.kind), Printable(def.key.name));
  if (!def.key.output_path.empty()) text += fmt::format("[{}]", Printable(def.key.output_path));
  if (def.key.micro_batch > 0) text += fmt::format(" micro-batch {}", def.key.micro_batch);
  if (def.key.call > 0) text += fmt::format(" call {}", def.key.call);
  if (def.key.mode != Mode::kTrain) text += fmt::format(" ({})", Name(def.key.mode));
  return text;
}

std::string CountsText(std::uint64_t nan, std::uint64_t pos_inf, std::uint64_t neg_inf) {
  std::string text;
  const auto add = [&](std::uint64_t count, const char* what) {
    if (count > 0) text += fmt::format("{}{} {}", text.empty() ? "" : ", ", count, what);
  };
  add(nan, "NaN");
  add(pos_inf, "+Inf");
  add(neg_inf, "-Inf");
  return text;
}

}  // namespace

RankRules::RankRules(const AlarmSettings& settings, std::function<TensorDef(std::uint32_t)> define)
    : settings_(settings), define_(std::move(define)), scalars_(settings) {}

void RankRules::Define(std::span<const TensorDef> activations, std::span<const Layout> layouts) {
  for (const TensorDef& def : activations) {
    if (def.id != states_.size()) continue;
    State& state = states_.emplace_back();
    state.kind = def.key.kind;
    state.train = def.key.mode == Mode::kTrain;
    state.relu = def.key.kind == Kind::kOutput && IsRelu(def.class_name);
    state.identity =
        HashOf(def.key.output_path, HashOf(def.key.name, 0xcbf29ce484222325u)) + def.key.call;
  }
  for (const Layout& layout : layouts) {
    if (layout.id == absent_.size()) absent_.push_back(layout.absent | layout.untrusted);
  }
}

bool RankRules::Knows(const StatColumns& stats) const {
  for (std::size_t i = 0; i < stats.size(); ++i) {
    if (stats.activation[i] >= states_.size() || stats.layout[i] >= absent_.size()) return false;
  }
  return true;
}

void RankRules::AddStats(const StatColumns& stats) {
  for (std::size_t i = 0; i < stats.size(); ++i) AddRecord(stats, i);
}

void RankRules::AddScalar(const ScalarRecord& scalar) {
  if (IsFoundInf(scalar.name)) {
    bool& found = found_inf_[scalar.step];
    found = found || scalar.value != 0;
    if (found_inf_.size() > kFoundInfMax) found_inf_.erase(found_inf_.begin());
  }
  scalars_.Add(scalar, &findings_);
}

void RankRules::AddStepEnd(std::uint64_t step) {
  Advance(step);
  if (step == step_) JudgeStep();
  judged_ = std::max(judged_.value_or(step), step);
}

void RankRules::Close(bool all) {
  if (all) {
    if (any_) JudgeStep();
    JudgeGradients(/*now=*/true);
    if (any_) judged_ = std::max(judged_.value_or(step_), step_);
    any_ = false;
    return;
  }
  if (nonfinite_ && !nonfinite_told_) TellNonfinite(*nonfinite_, /*gradient=*/false);
}

std::optional<std::uint64_t> RankRules::judged() const {
  if (!waiting_) return judged_;
  if (waiting_->step == 0) return std::nullopt;
  return std::min(judged_.value_or(waiting_->step - 1), waiting_->step - 1);
}

std::size_t RankRules::bytes() const {
  return sizeof(*this) + states_.capacity() * sizeof(State) +
         absent_.capacity() * sizeof(std::uint32_t) + groups_.capacity() * sizeof(Group) +
         scalars_.bytes() + update_.bytes();
}

// The step at hand is over where a later one begins.
void RankRules::Advance(std::uint64_t step) {
  if (step <= step_ && any_) return;
  if (any_) {
    JudgeStep();
    judged_ = std::max(judged_.value_or(step_), step_);
  }
  step_ = std::max(step, step_);
  any_ = true;
}

void RankRules::AddRecord(const StatColumns& columns, std::size_t i) {
  const std::uint32_t activation = columns.activation[i], order = columns.order[i];
  State& state = states_[activation];
  const std::uint64_t step = columns.step[i];
  if (step < state.next_step) return;
  state.next_step = SaturatingAdd(step, 1);
  if (step > step_ || !any_) Advance(step);
  const TensorStats& stats = columns.stats[i];
  const std::uint32_t absent = absent_[columns.layout[i]];
  if (stats.nan + stats.pos_inf + stats.neg_inf > 0 || !state.seen)
    CheckNonfinite(stats, activation, order, state);
  state.seen = true;
  if (!state.train) return;
  if (state.kind == Kind::kWeight || state.kind == Kind::kWeightGrad) {
    HashSum& sum = state.kind == Kind::kWeight ? digest_.weights : digest_.gradients;
    if ((absent & BitOf(Statistic::kHash)) == 0) {
      sum.sum += Mix(stats.hash ^ state.identity);
      ++sum.records;
    }
    weight_gradients_ = weight_gradients_ || state.kind == Kind::kWeightGrad;
    if (state.kind == Kind::kWeight && (absent & BitOf(Statistic::kHash)) == 0 &&
        settings_.On(AlarmRule::kUpdateNorm))
      update_.Add(activation, step, stats, columns.SketchOf(i));
  }
  const bool gradient = IsGradient(state.kind);
  if (stats.has_finite && (absent & BitOf(Statistic::kL2)) == 0 &&
      (gradient || state.kind == Kind::kOutput || state.kind == Kind::kInspect)) {
    const std::uint64_t nonfinite = stats.nan + stats.pos_inf + stats.neg_inf;
    const double finite =
        static_cast<double>(std::max<std::uint64_t>(stats.numel, nonfinite + 1) - nonfinite);
    const double rms = stats.l2 / std::sqrt(finite);
    // Beside NaN what is left may be nothing but the zeros of unused rows.
    if (nonfinite == 0 && (state.kind == Kind::kWeightGrad || state.kind == Kind::kGradOutput))
      CheckQuiet(rms, activation, order, state);
    if (state.quiet_group < 0) CheckNorm(rms, activation, order, state);
  }
  if (state.relu && (absent & BitOf(Statistic::kZero)) == 0)
    CheckDead(stats, activation, order, state);
}

void RankRules::CheckNonfinite(const TensorStats& stats, std::uint32_t activation,
                               std::uint32_t order, State& state) {
  // A mask: -inf from its first record on, and nothing else.
  if (!state.seen) state.masked = stats.neg_inf > 0;
  if (stats.nan == 0 && stats.pos_inf == 0 && (stats.neg_inf == 0 || state.masked)) return;
  state.masked = false;
  const bool gradient = IsGradient(state.kind);
  if (state.kind == Kind::kWeightGrad) weight_gradient_nonfinite_ = true;
  std::optional<Nonfinite>& first = gradient ? gradient_ : nonfinite_;
  const std::uint64_t activations = first ? first->activations + 1 : 1;
  if (!first || order < first->order) {
    first = {.step = step_,
             .activation = activation,
             .order = order,
             .nan = stats.nan,
             .pos_inf = stats.pos_inf,
             .neg_inf = stats.neg_inf,
             .numel = stats.numel};
  }
  first->activations = activations;
}

void RankRules::CheckNorm(double rms, std::uint32_t activation, std::uint32_t order, State& state) {
  if (!settings_.On(AlarmRule::kNormExplosion) && !settings_.On(AlarmRule::kVanishingGradient))
    return;
  const bool above =
      settings_.On(AlarmRule::kNormExplosion) && state.baseline.Exceeds(settings_, rms);
  if (state.high_group >= 0 || state.high_steps > 0) {
    ++state.high_steps;
    const bool new_level = state.high_steps >= kAlarmWindowMax;
    if (rms > state.baseline.limit() / 2 && !new_level) return;  // no part of the measure
    Recover(&state.high_group);
    state.high_steps = 0;
    if (new_level) state.baseline.Restart();
  } else if (above) {
    state.high_steps = 1;
    high_.push_back({activation, order, rms, state.baseline.median()});
    return;
  }
  state.baseline.Push(settings_, rms);
}

void RankRules::CheckQuiet(double rms, std::uint32_t activation, std::uint32_t order,
                           State& state) {
  if (!settings_.On(AlarmRule::kVanishingGradient)) return;
  const bool known = state.baseline.known(settings_);
  const double limit = known ? settings_.vanishing_ratio * state.baseline.median() : 0;
  state.ever_nonzero = state.ever_nonzero || rms > 0;
  if (state.quiet_group >= 0) {
    if (rms > 0 && rms >= kQuietHysteresis * limit) {
      Recover(&state.quiet_group);
      state.quiet_steps = 0;
    }
    return;
  }
  if (rms > 0 && !(known && rms < limit)) {
    state.quiet_steps = 0;
    return;
  }
  state.quiet_steps = static_cast<std::uint8_t>(std::min(state.quiet_steps + 1, 255));
  if (state.quiet_steps < settings_.vanishing_steps) return;
  if (state.ever_nonzero) {
    quiet_.push_back({activation, order, rms, state.baseline.median()});
    state.quiet_steps = 0;
  } else if (state.kind == Kind::kWeightGrad && !state.noted_unused) {
    state.noted_unused = true;
    unused_.push_back({activation, order, 0, 0});
  }
}

void RankRules::CheckDead(const TensorStats& stats, std::uint32_t activation, std::uint32_t order,
                          State& state) {
  if (!settings_.On(AlarmRule::kDeadRelu) || stats.numel == 0) return;
  const double zeros = static_cast<double>(stats.zero) / static_cast<double>(stats.numel);
  if (state.dead_group >= 0) {
    if (zeros < settings_.dead_relu_zeros * kZerosHysteresis) {
      Recover(&state.dead_group);
      state.dead_steps = 0;
    }
    return;
  }
  state.dead_steps = zeros >= settings_.dead_relu_zeros
                         ? static_cast<std::uint8_t>(std::min(state.dead_steps + 1, 255))
                         : 0;
  if (state.dead_steps < settings_.dead_relu_steps) return;
  state.dead_steps = 0;
  dead_.push_back({activation, order, zeros, settings_.dead_relu_zeros});
}

// An alarm is over when the last of its activations has recovered.
void RankRules::Recover(std::int32_t* group) {
  if (*group < 0) return;
  Group& of = groups_[static_cast<std::size_t>(std::exchange(*group, -1))];
  if (--of.members > 0) return;
  findings_.push_back(
      {.sort = Finding::Sort::kCleared,
       .rule = of.rule,
       .kind = kCleared,
       .step = step_,
       .subject = of.subject,
       .text = fmt::format("{}: {} has recovered at step {}", Name(of.rule), of.subject, step_),
       .fields = {}});
}

void RankRules::JudgeStep() {
  Join(AlarmRule::kNormExplosion, high_);
  Join(AlarmRule::kVanishingGradient, quiet_);
  Join(AlarmRule::kDeadRelu, dead_);
  JudgeUpdate();
  for (const Candidate& unused : unused_) {
    const TensorDef def = define_(unused.activation);
    findings_.push_back(
        {.sort = Finding::Sort::kNote,
         .rule = AlarmRule::kVanishingGradient,
         .kind = kUnusedParameter,
         .step = step_,
         .subject = SubjectOf(def),
         .text =
             fmt::format("{} has been exactly zero since its first step: it is frozen or unused",
                         SubjectOf(def)),
         .fields = FieldsOf(def, unused.order)});
  }
  unused_.clear();
  if (!gap_ && digest_.weights.records + digest_.gradients.records > 0) {
    digest_.step = step_;
    digests_.push_back(digest_);
  }
  if (nonfinite_ && waiting_) JudgeGradients(/*now=*/true);  // the older one explains this one
  if (gradient_ && (!nonfinite_ || gradient_->order < nonfinite_->order)) {
    if (!waiting_) waiting_ = gradient_;
    const bool harmless = weight_gradients_ && !weight_gradient_nonfinite_ && !gap_;
    if (waiting_->step == step_ && harmless) {
      TellOverflow(*waiting_);
      waiting_.reset();
    } else if (waiting_->step == step_ && nonfinite_ && !found_inf_.contains(step_)) {
      JudgeGradients(/*now=*/true);  // the weights have it
    }
  }
  if (nonfinite_) TellNonfinite(*nonfinite_, /*gradient=*/false);
  JudgeGradients(/*now=*/false);
  digest_ = {};
  nonfinite_.reset();
  gradient_.reset();
  weight_gradients_ = weight_gradient_nonfinite_ = gap_ = false;
}

// The running median restarts when the set of weights changes (a layer is unfrozen).
void RankRules::JudgeUpdate() {
  const auto norm = update_.EndStep();
  if (!norm) return;
  if (std::exchange(updated_, update_.weights()) != update_.weights()) updates_.Restart();
  const SpikeRule::Change change = updates_.Add(*norm, settings_.UpdateNorm());
  if (change == SpikeRule::Change::kNone) return;
  const bool over = change == SpikeRule::Change::kOver;
  findings_.push_back(
      {.sort = over ? Finding::Sort::kCleared : Finding::Sort::kAlarm,
       .rule = AlarmRule::kUpdateNorm,
       .kind = over ? kCleared : std::string(Name(AlarmRule::kUpdateNorm)),
       .step = step_,
       .subject = "update",
       .text = over ? fmt::format("the norm of the update is back to normal at step {}: {:.4g}",
                                  step_, *norm)
                    : fmt::format("the update of step {} moved the weights by about {:.4g}: {:.3g} "
                                  "times its running median {:.4g}",
                                  step_, *norm, *norm / updates_.median(), updates_.median()),
       .fields = {{"value", fmt::format("{:.6g}", *norm)},
                  {"median", fmt::format("{:.6g}", updates_.median())},
                  {"limit", fmt::format("{:.6g}", updates_.limit())},
                  {"weights", std::to_string(updated_)}}});
}

// A scaler's `found_inf` of the step decides; without it, kGradientPatience does.
void RankRules::JudgeGradients(bool now) {
  if (!waiting_) return;
  const auto said = found_inf_.find(waiting_->step);
  const bool overflow = said != found_inf_.end() && said->second;
  if (!overflow && !now && said == found_inf_.end() && step_ < waiting_->step + kGradientPatience)
    return;
  const Nonfinite found = *std::exchange(waiting_, std::nullopt);
  overflow ? TellOverflow(found) : TellNonfinite(found, /*gradient=*/true);
}

void RankRules::Join(AlarmRule rule, std::vector<Candidate>& candidates) {
  if (candidates.empty()) return;
  std::sort(candidates.begin(), candidates.end(),
            [](const Candidate& a, const Candidate& b) { return a.order < b.order; });
  const Candidate& first = candidates.front();
  const TensorDef def = define_(first.activation);
  const auto group = static_cast<std::int32_t>(groups_.size());
  groups_.push_back({.rule = rule, .subject = SubjectOf(def), .members = candidates.size()});
  for (const Candidate& candidate : candidates) {
    State& state = states_[candidate.activation];
    (rule == AlarmRule::kNormExplosion ? state.high_group
     : rule == AlarmRule::kDeadRelu    ? state.dead_group
                                       : state.quiet_group) = group;
  }
  std::string text;
  if (rule == AlarmRule::kNormExplosion) {
    text = fmt::format(
        "{} grew to a root mean square of {:.4g} at step {}: {:.3g} times its running median "
        "{:.4g}",
        SubjectOf(def), first.value, step_, first.value / first.expected, first.expected);
  } else if (rule == AlarmRule::kVanishingGradient) {
    text = first.value > 0 ? fmt::format(
                                 "{} has vanished for {} steps by step {}: a root mean square of "
                                 "{:.4g}, {:.3g} of its running median {:.4g}",
                                 SubjectOf(def), settings_.vanishing_steps, step_, first.value,
                                 first.value / first.expected, first.expected)
                           : fmt::format("{} has been exactly zero for {} steps by step {}",
                                         SubjectOf(def), settings_.vanishing_steps, step_);
  } else {
    text = fmt::format("{} has {:.4g} of its elements at zero for {} steps by step {}",
                       SubjectOf(def), first.value, settings_.dead_relu_steps, step_);
  }
  auto fields = FieldsOf(def, first.order);
  fields["value"] = fmt::format("{:.6g}", first.value);
  fields["expected"] = fmt::format("{:.6g}", first.expected);
  fields["activations"] = std::to_string(candidates.size());
  if (candidates.size() > 1) {
    text += fmt::format("; {} more activations with it", candidates.size() - 1);
    std::string others;
    for (std::size_t i = 1; i < std::min(candidates.size(), kNamed + 1); ++i)
      others += (others.empty() ? "" : ", ") + SubjectOf(define_(candidates[i].activation));
    fields["others"] = others;
  }
  findings_.push_back({.rule = rule,
                       .kind = std::string(Name(rule)),
                       .step = step_,
                       .subject = groups_.back().subject,
                       .text = std::move(text),
                       .fields = std::move(fields)});
  candidates.clear();
}

void RankRules::TellNonfinite(const Nonfinite& found, bool gradient) {
  if (!settings_.On(AlarmRule::kNanFirstSeen) || std::exchange(nonfinite_told_, true)) return;
  const TensorDef def = define_(found.activation);
  auto fields = FieldsOf(def, found.order);
  fields["nan"] = std::to_string(found.nan);
  fields["pos_inf"] = std::to_string(found.pos_inf);
  fields["neg_inf"] = std::to_string(found.neg_inf);
  fields["numel"] = std::to_string(found.numel);
  fields["subject_text"] = SubjectOf(def);
  fields["activations"] = std::to_string(found.activations);
  findings_.push_back(
      {.rule = AlarmRule::kNanFirstSeen,
       .kind = std::string(Name(AlarmRule::kNanFirstSeen)),
       .step = found.step,
       .subject = "",  // once a rank
       .text = fmt::format("first NaN or Inf of the rank: step {}, {}: {} of {} elements{}",
                           found.step, SubjectOf(def),
                           CountsText(found.nan, found.pos_inf, found.neg_inf), found.numel,
                           gradient ? " (a gradient, and no scaler has skipped the update)" : ""),
       .fields = std::move(fields)});
}

void RankRules::TellOverflow(const Nonfinite& found) {
  if (!settings_.On(AlarmRule::kNanFirstSeen) || overflows_told_++ >= kOverflowsMax) return;
  const TensorDef def = define_(found.activation);
  auto fields = FieldsOf(def, found.order);
  fields["activations"] = std::to_string(found.activations);
  findings_.push_back(
      {.sort = Finding::Sort::kNote,
       .rule = AlarmRule::kNanFirstSeen,
       .kind = kOverflow,
       .step = found.step,
       .subject = "",
       .text = fmt::format("gradients overflowed at step {}, first in {}; no update has seen them",
                           found.step, SubjectOf(def)),
       .fields = std::move(fields)});
}

std::map<std::string, std::string> RankRules::FieldsOf(const TensorDef& def,
                                                       std::uint32_t order) const {
  return {
      {"activation", def.key.name},           {"kind", std::string(Name(def.key.kind))},
      {"output_path", def.key.output_path},   {"micro_batch", std::to_string(def.key.micro_batch)},
      {"call", std::to_string(def.key.call)}, {"mode", std::string(Name(def.key.mode))},
      {"order", std::to_string(order)}};
}

}  // namespace statcollect::alarms
