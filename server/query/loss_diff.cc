#include "server/query/loss_diff.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <iterator>
#include <map>
#include <utility>

#include "common/names.h"

namespace statcollect::query {
namespace {

std::vector<std::string> Minus(const std::set<std::string>& a, const std::set<std::string>& b) {
  std::vector<std::string> rest;
  std::set_difference(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(rest));
  return rest;
}

}  // namespace

std::vector<std::string> LossDiff::OnlyInA() const { return Minus(names_a_, names_b_); }
std::vector<std::string> LossDiff::OnlyInB() const { return Minus(names_b_, names_a_); }

Status LossDiff::Compare(RankStepFindings& at) {
  std::map<std::pair<std::string, std::uint32_t>, std::deque<double>> losses_b;
  for (const ScalarRecord& scalar : at.losses_b) {
    losses_b[{scalar.name, scalar.micro_batch}].push_back(scalar.value);
    names_b_.insert(scalar.name);
    ++alone_;
  }
  std::uint64_t position = 0;
  for (const ScalarRecord& scalar : at.losses_a) {
    names_a_.insert(scalar.name);
    const auto other = losses_b.find({scalar.name, scalar.micro_batch});
    if (other == losses_b.end() || other->second.empty()) {
      ++alone_;
      continue;
    }
    STATCOLLECT_RETURN_IF_ERROR(ComparePair(scalar, other->second.front(), ++position, at));
    other->second.pop_front();
    --alone_;
  }
  return Status::Ok();
}

Status LossDiff::ComparePair(const ScalarRecord& a, double b, std::uint64_t position, RankStepFindings& at) {
  Comparison comparison;
  comparison.distance = Distance{.value = RelativeDifference(a.value, b), .kind = DistanceKind::kStatistics};
  const double distance = comparison.distance->value;
  compared_.insert(a.name);
  ++at.tally.records;
  if (distance == 0) {
    ++at.tally.identical;
    return Status::Ok();
  }
  comparison.tolerance = context_.tolerance.value_or(DefaultTolerance(DType::kF32, DType::kF32));
  comparison.agreement = distance > comparison.tolerance ? Agreement::kDiverged : Agreement::kWithinTolerance;
  if (comparison.agreement == Agreement::kDiverged && context_.noise != nullptr && !context_.exact) {
    auto noise = context_.noise->OfLoss(at.ranks.a, at.step, a.micro_batch, a.name);
    if (!noise.ok()) return noise.status();
    WeighByNoise(*noise, comparison);
  }
  const bool diverged = comparison.agreement == Agreement::kDiverged;
  Divergence row{.step = at.step,
                 .micro_batch = a.micro_batch,
                 .rank = at.ranks.a,
                 .stage = Stage::kLoss,
                 .activation = a.name};
  row.distance = distance;
  row.distance_kind = DistanceKind::kStatistics;
  row.tolerance = comparison.tolerance;
  row.times_noise = comparison.times_noise;
  row.mode = Name(Mode::kTrain);
  row.a = ObservationSide{.value = a.value};
  row.b = ObservationSide{.value = b};
  row.reason = !diverged ? Reason::kBitwise : std::isinf(distance) ? Reason::kNonfinite : Reason::kNumeric;
  const Place place = MakePlace(Stage::kLoss, a.micro_batch, false, position, at.ranks.a);
  if (!(at.first_bitwise && at.first_bitwise->place < place)) at.first_bitwise = PlacedRow{place, row};
  if (!diverged && !context_.exact) {
    ++at.tally.within_tolerance;
    return Status::Ok();
  }
  ++at.tally.diverged;
  at.rows.push_back({place, std::move(row)});
  return Status::Ok();
}

}  // namespace statcollect::query
