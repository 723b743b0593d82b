#include "server/query/verdict/noise_meter.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <utility>

#include "server/query/compare/roundoff.h"
#include "server/query/compare/step_order.h"
#include "server/query/verdict/constants.h"

namespace statcollect::query {
namespace {

double NormOf(const Apart::Sums& sums) {
  double squares = 0;
  for (const double sum : sums) squares += sum * sum;
  return std::sqrt(squares);
}

// Of a small tensor, a few large elements may make up nearly all of its noise, which is in
// proportion to them: the effective number of terms (Satterthwaite). `own`: the sums of the tensor
// itself.
std::size_t IndependentSums(std::uint64_t numel, const Apart::Sums& own) {
  if (numel >= measured::kTrimmedFrom) return Apart::kSums;
  double squares = 0, fourths = 0;
  for (const double sum : own) {
    squares += sum * sum;
    fourths += sum * sum * sum * sum;
  }
  const double terms = fourths > 0 ? squares * squares / fourths : 1;
  return std::clamp<std::size_t>(static_cast<std::size_t>(std::lround(terms)), 1, Apart::kSums);
}

bool HasSums(const Observation& seen) {
  return seen.sketch.size() >= Apart::kSums && seen.sketch.size() % Apart::kSums == 0;
}

bool HaveHashes(const Observation& a, const Observation& b) {
  return a.layout->Trusts(Statistic::kHash) && b.layout->Trusts(Statistic::kHash) &&
         a.layout->hash_kind == b.layout->hash_kind;
}

bool AreSimultaneous(Stage stage) {
  return IsInput(stage) || stage == Stage::kGrad || stage == Stage::kOptimizer;
}

// What another row in place of one changes at least, on average. Precondition: it has rows.
double SizeOfRow(const MeasuredRecord& record, const TensorPair& pair) {
  return record.size / std::sqrt(static_cast<double>(pair.a.layout->shape.front()));
}

// A loss is logged as a double. One with few digits was computed in a short type.
double UnitOfLoss(double value) {
  const auto bits = std::bit_cast<std::uint32_t>(static_cast<float>(value));
  if ((bits & 0xffff) == 0) return UnitRoundoff(DType::kBf16);
  if ((bits & 0x1fff) == 0) return UnitRoundoff(DType::kF16);
  return UnitRoundoff(DType::kF32);
}

double UnitOf(const TensorPair& pair) {
  if (pair.loss != nullptr) return UnitOfLoss(pair.loss_a);
  const DType a = pair.a.layout->dtype, b = pair.b.layout->dtype;
  return IsFloat(a) && IsFloat(b) ? std::max(UnitRoundoff(a), UnitRoundoff(b)) : 0;
}

}  // namespace

// A tensor in all its calls and micro-batches.
TensorIdentity IdentityOf(const TensorPair& pair) {
  if (pair.loss != nullptr) return {*pair.loss, Kind::kUnspecified, {}, Mode::kTrain};
  const TensorKey& key = pair.a.def->key;
  return {key.name, key.kind, key.output_path, key.mode};
}

// Of what a step leaves to the next, however it came about.
TensorIdentity LeftIdentity(const TensorPair& pair) {
  const TensorKey& key = pair.a.def->key;
  return {key.name, key.kind, key.output_path, Mode::kTrain};
}

// What the next step begins with.
bool IsLeft(const TensorPair& pair, Stage stage) {
  return stage == Stage::kOptimizer ||
         (pair.loss == nullptr && pair.a.def->key.kind == Kind::kBuffer);
}

NoiseMeter::NoiseMeter(std::vector<double> ulps) : ulps_(std::move(ulps)) {
  for (std::size_t i = 0; i < ulps_.size(); ++i) {
    if (scales_.empty() || scales_.back().ulps != ulps_[i])
      scales_.push_back({.ulps = ulps_[i], .first = i});
    ++scales_.back().count;
  }
}

Apart NoiseMeter::ApartIn(const TensorPair& pair, const Observation& other, std::size_t run) {
  Apart apart;
  if (other.def == nullptr) return apart;
  apart.known = true;
  const double distance = run == 0 ? pair.distance : DistanceBetween(pair.a, other);
  apart.alike = std::isfinite(distance);
  if (!apart.alike) return apart;
  // A difference may be too small for the sums.
  apart.same = HaveHashes(pair.a, other) ? HaveSameBits(pair.a, other) : distance == 0;
  const double absolute = distance * std::max(pair.a.stats->l2, other.stats->l2);
  if (HasSums(pair.a) && other.sketch.size() == pair.a.sketch.size()) {
    for (std::size_t i = 0; i < pair.a.sketch.size() && !apart.same; ++i)
      apart.value[i % Apart::kSums] += pair.a.sketch[i] - other.sketch[i];
  }
  apart.by_value = NormOf(apart.value);
  if (apart.by_value == 0 && !apart.same) {
    const double least = std::max(
        absolute, measured::kUnseen * UnitRoundoff(pair.a.layout->dtype) * pair.a.stats->l2);
    apart.value.fill(least / std::sqrt(static_cast<double>(Apart::kSums)));
    apart.by_value = least;
  }
  apart.change = apart.value;
  if (IsWeight(pair)) {
    std::vector<Apart::Sums>& before = weights_[LeftIdentity(pair)];
    const bool first = before.size() <= run;
    if (first) before.resize(run + 1);
    for (std::size_t i = 0; i < Apart::kSums && !first; ++i) apart.change[i] -= before[run][i];
    before[run] = apart.value;
  }
  apart.whole = NormOf(apart.change);
  return apart;
}

// Rung by rung: what one scale cannot show follows from the next.
void NoiseMeter::SetNoise(std::span<const Apart> twins, MeasuredRecord& to) const {
  std::vector<double> by_value(scales_.size());
  to.noise.assign(scales_.size(), measured::kUnknown);
  for (std::size_t s = 0; s < scales_.size(); ++s) {
    double squares = 0, squares_by_value = 0;
    std::size_t count = 0;
    for (const Apart& twin : twins.subspan(scales_[s].first, scales_[s].count)) {
      to.reshaped = to.reshaped || (twin.known && !twin.alike);
      if (!twin.alike) continue;
      squares += twin.whole * twin.whole;
      squares_by_value += twin.by_value * twin.by_value;
      ++count;
    }
    if (count > 0) to.noise[s] = std::sqrt(squares / static_cast<double>(count));
    by_value[s] =
        count > 0 ? std::sqrt(squares_by_value / static_cast<double>(count)) : measured::kUnknown;
  }
  const auto from_next = [&](std::vector<double>& noise) {
    if (noise.size() < 2 || !std::isfinite(noise[1])) return;
    const double step = scales_[0].ulps / scales_[1].ulps, proportional = noise[1] * step;
    if (noise[0] == measured::kUnknown) {
      noise[0] = proportional;
    } else if (noise[0] < proportional * measured::kRare) {
      noise[0] = noise[1] * std::sqrt(step);
    }
  };
  from_next(to.noise);
  from_next(by_value);
  for (double& noise : to.noise) noise = std::max(noise, measured::kLeastNoise * to.unit * to.size);
  for (double& noise : by_value) noise = std::max(noise, measured::kLeastNoise * to.unit * to.size);
  to.lost = std::isfinite(by_value[0]) && by_value[0] > measured::kLost * to.size;
  to.carried = std::move(by_value);
}

void NoiseMeter::MeasureTensor(const MeasuredStep& step, std::size_t i, MeasuredRecord& to) {
  const TensorPair& pair = step.pairs[i];
  to.size = pair.a.stats->l2;
  to.b = ApartIn(pair, pair.b, 0);
  Apart::Sums now{};
  for (std::size_t k = 0; k < pair.a.sketch.size() && HasSums(pair.a); ++k)
    now[k % Apart::kSums] += pair.a.sketch[k];
  to.sums = IndependentSums(pair.a.stats->numel, now);
  if (IsWeight(pair) && HasSums(pair.a)) {
    Apart::Sums update{};
    const auto [before, added] = own_.try_emplace(LeftIdentity(pair), now);
    for (std::size_t k = 0; k < Apart::kSums; ++k) update[k] = now[k] - before->second[k];
    before->second = now;
    to.update = NormOf(update);
  }
  std::vector<Apart> twins(ulps_.size());
  for (std::size_t t = 0; t < twins.size(); ++t) {
    twins[t] = ApartIn(pair, step.twins[t][i], t + 1);
    to.noisy = to.noisy || (twins[t].alike && !twins[t].same);
  }
  noise_arrived_ = noise_arrived_ || to.noisy;
  SetNoise(twins, to);
}

// One number has one degree of freedom, so all twins whose noise is still in proportion measure it.
void NoiseMeter::MeasureLoss(const MeasuredStep& step, std::size_t i, MeasuredRecord& to) const {
  const TensorPair& pair = step.pairs[i];
  const auto apart_by = [&](double difference) {
    Apart apart{.known = true, .alike = std::isfinite(difference), .same = difference == 0};
    apart.value.fill(difference / std::sqrt(static_cast<double>(Apart::kSums)));
    apart.change = apart.value;
    apart.whole = apart.by_value = std::abs(difference);
    return apart;
  };
  to.size = std::abs(pair.loss_a);
  to.b = apart_by(pair.loss_a - pair.loss_b);
  to.b.same = pair.distance == 0;
  std::vector<Apart> twins(ulps_.size());
  double squares = 0;
  std::size_t count = 0;
  for (std::size_t t = 0; t < twins.size(); ++t) {
    if (!step.losses[t][i]) continue;
    twins[t] = apart_by(pair.loss_a - *step.losses[t][i]);
    const double times = ulps_[t] / ulps_.front();
    if (!twins[t].alike || times > measured::kOfScale) continue;
    squares += twins[t].whole * twins[t].whole / (times * times);
    ++count;
  }
  SetNoise(twins, to);
  if (count > 0)
    to.noise[0] = std::max(to.noise[0], std::sqrt(squares / static_cast<double>(count)));
}

std::vector<MeasuredRecord> NoiseMeter::Measure(const MeasuredStep& step) {
  rows_.Step(step.pairs, step.twins);
  std::vector<MeasuredRecord> records(step.pairs.size());
  for (std::size_t i = 0; i < records.size(); ++i) {
    const TensorPair& pair = step.pairs[i];
    MeasuredRecord& record = records[i];
    record.stage = pair.loss != nullptr ? Stage::kLoss : StageOf(pair.a.def->key);
    record.unit = UnitOf(pair);
    const bool joins =
        i > 0 && records[i - 1].stage == record.stage && AreSimultaneous(record.stage);
    record.group = i == 0 ? 0 : records[i - 1].group + (joins ? 0 : 1);
    if (pair.loss != nullptr) {
      MeasureLoss(step, i, record);
    } else {
      MeasureTensor(step, i, record);
    }
    const bool counts =
        record.b.alike && !record.b.same && !record.lost && record.unit > 0 && pair.loss == nullptr;
    record.ratios.assign(scales_.size(), 0);
    for (std::size_t s = 0; s < scales_.size(); ++s) {
      const double by_value = record.carried[s];
      record.ratios[s] = counts && record.noise[s] > 0 ? record.b.whole / record.noise[s] : 0;
      record.carried[s] =
          counts && IsLeft(pair, record.stage) && by_value > 0 ? record.b.by_value / by_value : 0;
    }
    record.regrouped = rows_.Differ(pair) ||
                       (rows_.MayBeOthers(pair) && record.b.by_value >= SizeOfRow(record, pair));
    // By how much that moves what follows is not known; at least as far as the next rung.
    for (std::size_t s = 0; s < scales_.size() && record.regrouped; ++s)
      record.ratios[s] =
          std::max(record.ratios[s], measured::kOfScale * scales_[0].ulps / scales_[s].ulps);
    if (record.stage == Stage::kGrad && record.lost) noise_driven_.insert(pair.a.def->key.name);
  }
  return records;
}

}  // namespace statcollect::query
