#include "server/query/ranks/scan.h"

#include <bit>
#include <cmath>
#include <tuple>
#include <utility>

#include "common/mix_bits.h"
#include "server/query/compare/distance.h"
#include "server/query/parallel.h"

namespace statcollect::query {
namespace {

constexpr std::uint64_t kBatchElementsMin = 16;  // smaller inputs are equal by chance

// The content's hash; of records that another tool wrote without one, of all their statistics.
std::uint64_t IdentityOf(const Observation& o) {
  const TensorStats& s = *o.stats;
  if (o.layout->Trusts(Statistic::kHash))
    return IsContent(o.layout->hash_kind)
               ? s.hash
               : MixBits(s.hash + static_cast<std::uint64_t>(o.layout->hash_kind));
  std::uint64_t identity = 0;
  const auto add = [&](Statistic statistic, auto value) {
    if (o.layout->Trusts(statistic))
      identity = MixBits(identity + std::bit_cast<std::uint64_t>(value) + 0x9e3779b97f4a7c15u);
  };
  add(Statistic::kMin, s.min);
  add(Statistic::kMax, s.max);
  add(Statistic::kMean, s.mean);
  add(Statistic::kStd, s.std);
  add(Statistic::kL2, s.l2);
  add(Statistic::kNan, s.nan);
  add(Statistic::kInf, s.pos_inf);
  add(Statistic::kZero, s.zero);
  return identity;
}

TensorCell CellOf(const Observation& o, const StepOrder& order) {
  const TensorStats& s = *o.stats;
  const double finite = FiniteCount(o);
  const bool bounds = o.layout->Trusts(Statistic::kMin) && o.layout->Trusts(Statistic::kMax);
  TensorCell cell = {.present = true,
                     .finite = s.has_finite && finite > 0,
                     .nan = s.nan > 0,
                     .pos_inf = s.pos_inf > 0};
  cell.varied = s.has_finite && !(bounds && s.min == s.max);
  cell.large = s.numel >= kBatchElementsMin;
  cell.order = o.order;
  cell.segment = order.At(o.order).segment;
  cell.hash = IdentityOf(o);
  cell.rms = cell.finite && o.layout->Trusts(Statistic::kL2) ? s.l2 / std::sqrt(finite) : 0;
  return cell;
}

// Ranks of a tensor-parallel group have the same data; the pieces of their activations and the
// boxes of their inputs say so.
std::optional<std::uint64_t> DataPartOf(const std::vector<Observation>& observations) {
  std::optional<std::uint64_t> part;
  std::uint32_t pieces = 1, piece = 0;
  for (const Observation& o : observations) {
    if (!o.layout->placement || o.def->key.mode == Mode::kEval) continue;
    const Placement& place = *o.layout->placement;
    if (o.def->key.kind == Kind::kBatch) {
      for (const std::int64_t number : place.boxes)
        part = MixBits(part.value_or(0) ^ static_cast<std::uint64_t>(number));
    } else if (o.def->key.kind == Kind::kOutput) {
      part = part.value_or(0);
      if (place.pieces > pieces) std::tie(pieces, piece) = std::tie(place.pieces, place.piece);
    }
  }
  if (part && pieces > 1) part = MixBits(*part ^ (std::uint64_t{piece} << 32 | pieces));
  return part;
}

}  // namespace

Status RankStepReader::Run(const std::function<Status(RankStep&)>& take,
                           const std::stop_token& stop) {
  std::vector<RankStep> wave, next = NextWave();
  while (!wave.empty() || !next.empty()) {
    Status taken;
    const auto take_wave = [&] {
      for (RankStep& read : wave) {
        if (taken = take(read); !taken.ok()) return;
      }
    };
    // The checks follow each other, in order: this thread does them while the others read what
    // comes next.
    InParallelWith(
        take_wave, next.size(), [&](std::size_t i) { Read(next[i], stop); }, threads_);
    STATCOLLECT_RETURN_IF_ERROR(taken);
    wave = std::exchange(next, NextWave());
  }
  return Status::Ok();
}

std::vector<RankStep> RankStepReader::NextWave() {
  std::vector<RankStep> wave;
  while (step_ != end_ && !groups_.empty() && wave.size() < kWaveRankSteps) {
    wave.push_back({.step = step_->first,
                    .attempt = step_->second,
                    .group = group_,
                    .index = index_,
                    .rank = groups_[group_][index_]});
    if (++index_ < groups_[group_].size()) continue;
    index_ = 0;
    if (++group_ < groups_.size()) continue;
    group_ = 0;
    ++step_;
  }
  return wave;
}

void RankStepReader::Read(RankStep& to, const std::stop_token& stop) const {
  if (stop.stop_requested() || !view_.ranks(to.attempt).contains(to.rank)) return;
  auto data = view_.Read(to.attempt, to.rank, to.step);
  to.status = data.status();
  if (!data.ok()) return;
  to.data = *std::move(data);
  to.cells.reserve(to.data.observations.size());
  to.data_part = DataPartOf(to.data.observations);
  const StepOrder order(to.data.observations);
  for (const Observation& o : to.data.observations) to.cells.push_back(CellOf(o, order));
}

}  // namespace statcollect::query
