#include "server/query/compare/loss_diff.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <deque>
#include <iterator>
#include <map>
#include <optional>
#include <utility>

#include "common/names.h"
#include "server/query/number_text.h"

namespace statcollect::query {
namespace {

std::vector<std::string> Minus(const std::set<std::string>& a, const std::set<std::string>& b) {
  std::vector<std::string> rest;
  std::set_difference(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(rest));
  return rest;
}

using LossName = std::pair<std::string, std::uint32_t>;  // and its micro-batch

LossName NameOf(const ScalarRecord& scalar) { return {scalar.name, scalar.micro_batch}; }

// Whether the words are a part of the text by themselves, in any case: "gen" in "gen/loss" and
// "loss_Gen", not in "general_loss".
bool Names(std::string_view text, std::string_view words) {
  const auto is_word = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0; };
  const auto same = [](char x, char y) {
    return std::tolower(static_cast<unsigned char>(x)) ==
           std::tolower(static_cast<unsigned char>(y));
  };
  for (auto at = text.begin();; ++at) {
    at = std::search(at, text.end(), words.begin(), words.end(), same);
    if (at == text.end()) return false;
    const auto end = at + static_cast<std::ptrdiff_t>(words.size());
    if ((at == text.begin() || !is_word(*(at - 1))) && (end == text.end() || !is_word(*end)))
      return true;
  }
}

// The places of losses in a step of several segments. Candidates are the segments with a training
// forward pass that update the model named in the loss's name; if there is none, all segments with
// a training forward pass. A loss belongs to the last candidate in which it may have been computed.
class LossSpots {
 public:
  LossSpots(std::span<const Observation> step, const StepOrder& order) {
    for (const Observation& seen : step) {
      const TensorKey& key = seen.def->key;
      const Spot spot = order.At(seen.order);
      if (StageOf(key) == Stage::kOptimizer) {
        updated_[key.name.substr(0, key.name.find('.'))].insert(spot.segment);
      } else if (StageOf(key) == Stage::kForward && IsOfTraining(key)) {
        Passes& passes = forward_[spot.segment];
        passes.last = passes.of_micro_batch[key.micro_batch] = spot.pass;
      }
    }
  }

  Spot Of(const ScalarRecord& loss) const {
    std::set<std::uint32_t> named;
    for (const auto& [model, segments] : updated_) {
      if (!model.empty() && Names(loss.name, model)) named.insert(segments.begin(), segments.end());
    }
    const bool by_name = std::any_of(named.begin(), named.end(), [&](std::uint32_t segment) {
      return forward_.contains(segment);
    });
    std::optional<Spot> last;
    for (auto at = forward_.rbegin(); at != forward_.rend(); ++at) {
      const auto& [segment, passes] = *at;
      if (by_name && !named.contains(segment)) continue;
      const auto own = passes.of_micro_batch.find(loss.micro_batch);
      if (own != passes.of_micro_batch.end()) return {segment, own->second};
      if (!last) last = Spot{segment, passes.last};
    }
    return last.value_or(Spot());
  }

 private:
  // The last training pass, in all and of each micro-batch.
  struct Passes {
    std::uint32_t last = 0;
    std::map<std::uint32_t, std::uint32_t> of_micro_batch;
  };
  std::map<std::uint32_t, Passes> forward_;  // by segment
  std::map<std::string, std::set<std::uint32_t>>
      updated_;  // by first component of the weights' names: segments
};

}  // namespace

std::vector<std::string> LossDiff::OnlyInA() const { return Minus(names_a_, names_b_); }
std::vector<std::string> LossDiff::OnlyInB() const { return Minus(names_b_, names_a_); }

std::string LossDiff::FactorText(const std::string& run_a, const std::string& run_b) const {
  return "losses of " + run_b + " were multiplied by " + ShortNumber(*factor_) +
         ": it cuts a batch into other parts than " + run_a +
         ", and its losses are those of a part";
}

bool LossesDiffer(const std::vector<ScalarRecord>& a, const std::vector<ScalarRecord>& b) {
  if (a == b) return false;
  std::map<LossName, std::deque<double>> values_b;
  for (const ScalarRecord& scalar : b) values_b[NameOf(scalar)].push_back(scalar.value);
  return std::any_of(a.begin(), a.end(), [&](const ScalarRecord& scalar) {
    const auto other = values_b.find(NameOf(scalar));
    if (other == values_b.end() || other->second.empty()) return false;
    const double value = other->second.front();
    other->second.pop_front();
    return RelativeDifference(scalar.value, value) != 0;
  });
}

std::vector<Spot> SpotsOfLosses(std::span<const Observation> step,
                                const std::vector<ScalarRecord>& losses) {
  const StepOrder order(step);
  if (!order.HasSegments()) return {};
  const LossSpots spots(step, order);
  std::vector<Spot> all;
  for (const ScalarRecord& loss : losses) all.push_back(spots.Of(loss));
  return all;
}

double LossFactor(const DiffContext& context, double a, double b) {
  const double tolerance = DefaultTolerance(DType::kF32, DType::kF32);
  if (context.tolerance || context.exact || RelativeDifference(a, b) <= tolerance) return 1;
  for (const double factor : context.loss_factors) {
    if (RelativeDifference(a, b * factor) <= tolerance) return factor;
  }
  return 1;
}

Status LossDiff::Compare(RankStepFindings& at) {
  std::map<LossName, std::deque<double>> losses_b;
  for (const ScalarRecord& scalar : at.losses_b) {
    losses_b[NameOf(scalar)].push_back(scalar.value);
    names_b_.insert(scalar.name);
    ++alone_;
  }
  std::uint64_t position = 0;
  for (std::size_t i = 0; i < at.losses_a.size(); ++i) {
    const ScalarRecord& scalar = at.losses_a[i];
    names_a_.insert(scalar.name);
    const auto other = losses_b.find(NameOf(scalar));
    if (other == losses_b.end() || other->second.empty()) {
      ++alone_;
      continue;
    }
    const Spot spot = at.loss_spots.empty() ? Spot{0, scalar.micro_batch} : at.loss_spots[i];
    ReportOrder place = MakeReportOrder(Stage::kLoss, spot.pass, false, ++position, at.ranks.a);
    place.segment = spot.segment;
    STATCOLLECT_RETURN_IF_ERROR(ComparePair(scalar, other->second.front(), place, at));
    other->second.pop_front();
    --alone_;
  }
  return Status::Ok();
}

Status LossDiff::ComparePair(const ScalarRecord& a, double b, const ReportOrder& place,
                             RankStepFindings& at) {
  const double factor = LossFactor(context_, a.value, b);
  if (factor != 1) factor_ = factor;
  Comparison comparison;
  comparison.distance =
      Distance{.value = RelativeDifference(a.value, b * factor), .kind = DistanceKind::kStatistics};
  const double distance = comparison.distance->value;
  compared_.insert(a.name);
  ++at.tally.records;
  if (distance == 0) {
    ++at.tally.identical;
    return Status::Ok();
  }
  comparison.tolerance = context_.tolerance.value_or(DefaultTolerance(DType::kF32, DType::kF32));
  comparison.agreement =
      distance > comparison.tolerance ? Agreement::kDiverged : Agreement::kWithinTolerance;
  if (comparison.agreement == Agreement::kDiverged && context_.noise != nullptr &&
      !context_.exact) {
    STATCOLLECT_ASSIGN_OR_RETURN(
        auto noise, context_.noise->OfLoss(at.ranks.a, at.step, a.micro_batch, a.name));
    WeighByNoise(noise, context_.noise_allows, comparison);
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
  row.segment = place.segment;
  row.a = ObservationSide{.value = a.value};
  row.b = ObservationSide{.value = b};
  row.reason = !diverged              ? Reason::kBitwise
               : std::isinf(distance) ? Reason::kNonfinite
                                      : Reason::kNumeric;
  if (!(at.first_bitwise && at.first_bitwise->place < place))
    at.first_bitwise = PlacedRow{place, row};
  if (!diverged && !context_.exact) {
    ++at.tally.within_tolerance;
    return Status::Ok();
  }
  ++at.tally.diverged;
  if (row.reason == Reason::kNumeric) ++at.tally.numeric;
  at.rows.push_back({place, std::move(row)});
  return Status::Ok();
}

}  // namespace statcollect::query
