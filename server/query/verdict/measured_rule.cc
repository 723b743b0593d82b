#include "server/query/verdict/measured_rule.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <utility>

#include "common/mix_bits.h"
#include "server/query/compare/roundoff.h"
#include "server/query/compare/step_order.h"
#include "server/query/verdict/constants.h"
#include "server/query/verdict/noise_threshold.h"

namespace statcollect::query {
namespace {

// Without the sums that stand out, as if they were like the others.
double TrimmedNorm(const Apart& apart) {
  Apart::Sums squares = apart.change;
  for (double& sum : squares) sum *= sum;
  std::sort(squares.begin(), squares.end());
  double rest = 0;
  for (std::size_t i = 0; i + measured::kTrimmed < squares.size(); ++i) rest += squares[i];
  return std::min(std::sqrt(rest / measured::kShareOfRest), apart.whole);
}

// Before gradients of weights are complete.
bool IsOfPasses(Stage stage) { return stage != Stage::kGrad && stage != Stage::kOptimizer; }

std::size_t HashOfKeys(std::span<const TensorPair> pairs) {
  std::size_t hash = pairs.size();
  const auto mix = [&hash](std::uint64_t value) { hash = MixBits(hash ^ value); };
  for (const TensorPair& pair : pairs) {
    if (pair.loss != nullptr) {
      mix(std::hash<std::string>()(*pair.loss));
      continue;
    }
    const TensorKey& key = pair.a.def->key;
    mix(std::hash<std::string>()(key.name));
    mix(std::hash<std::string>()(key.output_path));
    mix((static_cast<std::uint64_t>(key.kind) << 56) ^
        (static_cast<std::uint64_t>(key.call) << 28) ^ key.micro_batch);
  }
  return hash;
}

}  // namespace

void SeenBefore::Merge(const SeenBefore& other) {
  for (std::size_t s = 0; s < ratios.size(); ++s) ratios[s] = std::max(ratios[s], other.ratios[s]);
  lost = lost || other.lost;
  same_bits = same_bits && other.same_bits;
  largest = std::max(largest, other.largest);
}

MeasuredRule::MeasuredRule(std::vector<double> ulps, OtherConvolutions convolutions)
    : meter_(std::move(ulps)), convolutions_(convolutions) {}

// An update is computed from its gradient, its weight and its state, whatever else differs.
void MeasuredRule::NoteOwnInputs(const TensorPair& pair, MeasuredRecord& record) {
  const TensorKey& key = pair.a.def->key;
  if (record.stage == Stage::kGrad) gradients_agree_[key.name] = record.b.same;
  if (key.kind != Kind::kWeight && key.kind != Kind::kOptimizerState) return;
  const auto gradient = gradients_agree_.find(key.name);
  const auto agreed = [&](Kind kind) -> std::optional<bool> {
    std::optional<bool> all;
    auto at = left_.lower_bound({key.name, kind, {}, Mode::kUnspecified});
    for (;
         at != left_.end() && std::get<0>(at->first) == key.name && std::get<1>(at->first) == kind;
         ++at)
      all = all.value_or(true) && at->second.agrees;
    return all;
  };
  record.own_inputs_agree =
      record.stage == Stage::kOptimizer && gradient != gradients_agree_.end() && gradient->second &&
      agreed(Kind::kWeight).value_or(false) && agreed(Kind::kOptimizerState).value_or(true);
}

std::vector<MeasuredRecord> MeasuredRule::Measure(const MeasuredStep& step) {
  lengths_.Step(step.pairs);
  means_.Step(step.pairs);
  gradients_agree_.clear();
  std::vector<MeasuredRecord> records = meter_.Measure(step);
  groups_.clear();
  for (std::size_t i = 0; i < records.size(); ++i) {
    groups_.push_back(records[i].group);
    if (step.pairs[i].loss == nullptr) NoteOwnInputs(step.pairs[i], records[i]);
  }
  return records;
}

// The smallest noise of a unit in the last place that the tensor has shown, in any step: its own
// rounding.
double MeasuredRule::LeastNoise(const TensorPair& pair, const MeasuredRecord& record) {
  TensorIdentity identity = IdentityOf(pair);
  if (pair.loss != nullptr) std::get<0>(identity) = *losses_.insert(*pair.loss).first;
  const auto [at, added] =
      least_.try_emplace(identity, Least{.noise = measured::kUnknown, .since = steps_});
  Least& least = at->second;
  if (record.size > 0 && record.noise[0] > 0)
    least.noise = std::min(least.noise, record.noise[0] / record.size);
  const double noise = std::isfinite(least.noise) ? least.noise * record.size : 0;
  // A mean that is zero but for rounding rounds like the values that it is taken of.
  return pair.loss != nullptr
             ? noise
             : std::max(noise, measured::kLeastNoise * record.unit * means_.SizeOf(pair));
}

// Whether the noise grows by far less than in proportion from one rung to the next: single events
// make it, such as an element that is rounded to the next bfloat16 inside of an optimizer. However
// small a difference is, one may happen.
bool MeasuredRule::HasRareEvents(const MeasuredRecord& record) const {
  if (meter_.scales().size() < 2 || !std::isfinite(record.noise[1])) return false;
  return record.noise[1] <
         record.noise[0] *
             std::pow(meter_.scales()[1].ulps / meter_.scales()[0].ulps, measured::kGrowth);
}

double MeasuredRule::Expected(const TensorPair& pair, const MeasuredRecord& record,
                              const SeenBefore& before, double least) const {
  const double length = pair.loss == nullptr ? lengths_.Of(pair) : 1;
  double expected = std::max(1.0, measured::kSumFactor * std::sqrt(length)) * least;
  if (pair.loss == nullptr && lengths_.IsOtherConvolution(pair, convolutions_))
    expected = std::max(expected, measured::kWinograd * record.unit * record.size);
  if (record.own_inputs_agree) return expected;
  std::size_t scale = meter_.scales().size() - 1;
  for (std::size_t s = scale; s-- > 0;) {
    if (before.ratios[s] <= measured::kOfScale) scale = s;
  }
  if (before.ratios[scale] > 0 && std::isfinite(record.noise[scale]))
    expected = std::max(expected, before.ratios[scale] * record.noise[scale]);
  const bool jumps = before.ratios.front() > 0 && HasRareEvents(record);
  if ((before.lost || jumps) && std::isfinite(record.noise[0]))
    expected = std::max(expected, record.noise[0]);
  return expected;
}

double MeasuredRule::JudgedNorm(const TensorPair& pair, const MeasuredRecord& record) {
  const bool trimmed = pair.loss == nullptr && pair.a.stats->numel >= measured::kTrimmedFrom;
  return trimmed ? TrimmedNorm(record.b) : record.b.whole;
}

// What is computed from equal bits may round in another order, whatever its noise: one number tells
// little of that.
double MeasuredRule::RoundingOfLoss(const MeasuredRecord& record, double terms) {
  return std::max(kKernelRoundoffs, measured::kSumFactor * std::sqrt(terms)) * record.unit *
         record.size;
}

// Above 1: more than noise explains, by this factor.
double MeasuredRule::Excess(const TensorPair& pair, const MeasuredRecord& record, double expected,
                            const SeenBefore& before) const {
  if (record.b.same) return 0;
  if (record.regrouped && !before.same_bits) return 0;
  if (!record.b.alike) return record.reshaped ? 0 : measured::kUnknown;
  // Noise is in no data, but in what a model has computed and another is given.
  const bool computed = record.stage == Stage::kBatch && record.unit > 0 &&
                        (before.ratios.front() > 0 || record.noisy);
  if (IsInput(record.stage)) {
    const double given = record.unit == 0
                             ? measured::kUnknown
                             : record.b.whole / (kInputRoundoffs * record.unit * record.size);
    if (!computed || given <= 1) return given;
  }
  if (record.unit == 0 || record.lost) return 0;
  if (pair.loss != nullptr && before.same_bits) return record.b.whole / expected;
  if (record.noise[0] == measured::kUnknown) return 0;
  const std::uint64_t numel = pair.loss == nullptr ? pair.a.stats->numel : 1;
  std::size_t twins = meter_.scales().front().count;
  if (pair.loss != nullptr) {
    while (twins < meter_.ulps().size() &&
           meter_.ulps()[twins] <= measured::kOfScale * meter_.ulps().front())
      ++twins;
  }
  return JudgedNorm(pair, record) / (NoiseThreshold(pair.loss == nullptr ? record.sums : 1, twins,
                                                    numel >= measured::kTrimmedFrom) *
                                     expected);
}

// Equal inputs gave another output: everything before agrees bit for bit, and so did this tensor in
// an earlier step, so it is not another kernel. Of what differs first at once, the largest excess
// stays the largest.
void MeasuredRule::FindFirst(std::span<const MeasuredRecord> records, const MeasuredStep& step,
                             Judged& judged) const {
  const auto differs = [](const MeasuredRecord& record) {
    return record.b.known && !record.b.same;
  };
  const auto first = std::find_if(records.begin(), records.end(), differs);
  if (first == records.end() ||
      judged.same_bits[static_cast<std::size_t>(first - records.begin())] == 0)
    return;
  for (std::size_t i = 0; i < records.size(); ++i) {
    const MeasuredRecord& record = records[i];
    if (record.group != first->group || !differs(record) || IsInput(record.stage)) continue;
    if (step.pairs[i].loss != nullptr || least_.at(IdentityOf(step.pairs[i])).since == steps_)
      continue;
    if (record.b.whole > kKernelRoundoffs * record.unit * record.size)
      judged.excess[i] =
          std::max(judged.excess[i], measured::kFirstExcess + measured::kFirstExcessOrder *
                                                                  std::min(judged.excess[i], 1.0));
  }
}

void MeasuredRule::Remember(std::span<const MeasuredRecord> records, const MeasuredStep& step) {
  for (std::size_t i = 0; i < records.size(); ++i) {
    const TensorPair& pair = step.pairs[i];
    const MeasuredRecord& record = records[i];
    any_difference_ = any_difference_ || (record.b.known && !record.b.same);
    if (!IsLeft(pair, record.stage) && record.stage != Stage::kWeights) continue;
    left_[LeftIdentity(pair)] = {.agrees = record.b.same, .ratios = record.carried};
  }
}

Explained MeasuredRule::Describe(const TensorPair& pair, const MeasuredRecord& record,
                                 double expected) {
  const double other = pair.loss != nullptr ? std::abs(pair.loss_b) : pair.b.stats->l2;
  const double norm = record.update > 0 ? record.update
                      : record.size > 0 ? record.size
                      : other > 0       ? other
                                        : 1;
  Explained one;
  one.pair = &pair;
  one.stage = record.stage;
  one.unit = one.rounding = record.unit;
  one.observed = record.b.same    ? 0
                 : record.b.alike ? JudgedNorm(pair, record) / norm
                                  : measured::kUnknown;
  one.expected = std::max(expected / norm, std::numeric_limits<double>::min());
  return one;
}

Confidence MeasuredRule::ConfidenceOf(const Jump& jump, const MeasuredRecord& record, double excess,
                                      std::uint64_t numel, bool first) {
  if (jump.kind != JumpKind::kMeasured || std::isinf(excess)) return Confidence::kCertain;
  if (record.own_inputs_agree && excess >= measured::kCertain) return Confidence::kCertain;
  if (first) return excess >= measured::kLikelyFirst ? Confidence::kLikely : Confidence::kPossible;
  if (excess >= measured::kCertain && numel >= measured::kCertainFrom) return Confidence::kCertain;
  return excess >= measured::kLikely ? Confidence::kLikely : Confidence::kPossible;
}

Jump MeasuredRule::JumpAt(std::size_t index, const MeasuredRecord& record, const Explained& one,
                          double excess) {
  Jump jump{.index = index,
            .kind = JumpKind::kMeasured,
            .ratio = RatioOf(one),
            .excess = std::log(excess)};
  if (IsInput(record.stage)) jump.kind = JumpKind::kInput;
  return jump;
}

SeenBefore MeasuredRule::SeenAtStart() const {
  SeenBefore seen{.ratios = std::vector<double>(meter_.scales().size(), 0),
                  .same_bits = !any_difference_};
  for (const auto& [identity, left] : left_) {
    for (std::size_t s = 0; s < left.ratios.size(); ++s)
      seen.ratios[s] = std::max(seen.ratios[s], left.ratios[s]);
  }
  return seen;
}

void MeasuredRule::Add(const MeasuredRecord& record, const TensorPair& pair, bool ratio_counts,
                       SeenBefore& seen) {
  seen.same_bits = seen.same_bits && (!record.b.known || record.b.same);
  if (pair.loss == nullptr)
    seen.largest = std::max(seen.largest, static_cast<double>(pair.a.stats->numel));
  if (!ratio_counts) return;
  for (std::size_t s = 0; s < seen.ratios.size(); ++s)
    seen.ratios[s] = std::max(seen.ratios[s], record.ratios[s]);
  seen.lost = seen.lost ||
              (record.lost && !record.b.same && !IsInput(record.stage) && pair.loss == nullptr);
}

RankTrail MeasuredRule::Follow(const MeasuredStep& step) {
  ++steps_;
  const std::vector<MeasuredRecord> records = Measure(step);
  RankTrail trail{.tensors = HashOfKeys(step.pairs), .start = SeenAtStart()};
  SeenBefore seen = trail.start;
  trail.passes = seen;
  for (std::size_t i = 0; i < records.size(); ++i) {
    if (i == 0 || records[i].group != records[i - 1].group) trail.groups.push_back(seen);
    Add(records[i], step.pairs[i], /*ratio_counts=*/true, seen);
    if (IsOfPasses(records[i].stage)) trail.passes = seen;
  }
  Remember(records, step);
  return trail;
}

MeasuredRule::Judged MeasuredRule::JudgeRecords(std::span<const MeasuredRecord> records,
                                                const MeasuredStep& step,
                                                std::span<const RankTrail* const> others,
                                                bool outputs_count) {
  SeenBefore before = SeenAtStart();
  for (const RankTrail* const other : others) before.Merge(other->start);
  SeenBefore pending = before;  // with the record's own group
  const std::size_t tensors = others.empty() ? 0 : HashOfKeys(step.pairs);
  Judged judged;
  for (std::size_t i = 0; i < records.size(); ++i) {
    const TensorPair& pair = step.pairs[i];
    const MeasuredRecord& record = records[i];
    if (i > 0 && record.group != records[i - 1].group) {
      before = pending;
      for (const RankTrail* const other : others) {
        if (other->tensors == tensors) {
          before.Merge(other->groups[record.group]);
        } else if (!IsOfPasses(record.stage)) {
          before.Merge(other->passes);
        }
      }
    }
    double expected = Expected(pair, record, before, LeastNoise(pair, record));
    if (pair.loss != nullptr && before.same_bits)
      expected = std::max(expected, RoundingOfLoss(record, before.largest));
    judged.expected.push_back(expected);
    judged.excess.push_back(Excess(pair, record, expected, before));
    judged.first.push_back(before.ratios.front() == 0);
    judged.same_bits.push_back(before.same_bits);
    const bool without_effect =
        !outputs_count && record.stage == Stage::kForward && judged.excess.back() > 1;
    Add(record, pair, !without_effect, pending);
  }
  return judged;
}

// Judges again as if the outputs that jump explained nothing. If everything that training reads of
// them is still explained, and the first of them is so large that it would show, they have no
// effect.
std::vector<std::size_t> MeasuredRule::WithoutEffect(std::span<const MeasuredRecord> records,
                                                     const MeasuredStep& step,
                                                     std::span<const RankTrail* const> others,
                                                     const Judged& judged) {
  const auto first =
      std::find_if(judged.excess.begin(), judged.excess.end(), [](double one) { return one > 1; });
  const auto index = static_cast<std::size_t>(first - judged.excess.begin());
  if (first == judged.excess.end() || records[index].stage != Stage::kForward) return {};
  if (!(*first > measured::kOfScale) ||
      records[index].b.by_value < measured::kUnread * records[index].size)
    return {};
  const Judged again = JudgeRecords(records, step, others, /*outputs_count=*/false);
  std::vector<std::size_t> outputs;
  bool gradients = false;
  for (std::size_t i = 0; i < records.size(); ++i) {
    gradients = gradients || records[i].stage == Stage::kGrad;
    if (!(again.excess[i] > 1)) continue;
    // Running statistics are an effect, although a norm hides from everything else what its inputs'
    // size and mean are.
    const bool left = IsLeft(step.pairs[i], records[i].stage);
    if (records[i].stage != Stage::kForward || !records[i].b.alike || left) return {};
    outputs.push_back(i);
  }
  return gradients ? outputs : std::vector<std::size_t>();
}

JudgedStep MeasuredRule::Judge(const MeasuredStep& step, std::span<const RankTrail* const> others) {
  ++steps_;
  std::vector<MeasuredRecord> records = Measure(step);
  Judged judged = JudgeRecords(records, step, others, /*outputs_count=*/true);
  JudgedStep answer{.data_dependent = &meter_.rows().varying(),
                    .noise_driven = &meter_.noise_driven()};
  answer.without_effect = WithoutEffect(records, step, others, judged);
  for (const std::size_t i : answer.without_effect)
    std::fill(records[i].carried.begin(), records[i].carried.end(), 0.0);
  const std::vector<double> by_noise = judged.excess;
  if (answer.without_effect.empty()) FindFirst(records, step, judged);
  for (std::size_t i = 0; i < records.size(); ++i) {
    const MeasuredRecord& record = records[i];
    const double excess = judged.excess[i];
    answer.explained.push_back(Describe(step.pairs[i], record, judged.expected[i]));
    if (!(excess > 1) || !answer.without_effect.empty()) continue;
    Jump jump = JumpAt(i, record, answer.explained[i], excess);
    const std::uint64_t numel = step.pairs[i].loss == nullptr ? step.pairs[i].a.stats->numel : 1;
    if (jump.kind == JumpKind::kMeasured && by_noise[i] != excess) {
      jump.kind = JumpKind::kUnchanged;
      jump.past = steps_ - 1;
    }
    jump.confidence = ConfidenceOf(jump, record, excess, numel, judged.first[i] != 0);
    answer.jumps.push_back(jump);
  }
  Remember(records, step);
  return answer;
}

std::size_t MeasuredRule::ChooseJump(std::span<const Jump> jumps) const {
  const std::uint32_t group = groups_[jumps.front().index];
  std::size_t chosen = 0;
  for (std::size_t i = 1; i < jumps.size() && groups_[jumps[i].index] == group; ++i) {
    if (jumps[chosen].kind == JumpKind::kSetting) break;
    if (jumps[i].kind == JumpKind::kSetting || jumps[i].excess > jumps[chosen].excess) chosen = i;
  }
  return chosen;
}

}  // namespace statcollect::query
