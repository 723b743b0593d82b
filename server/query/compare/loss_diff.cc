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

std::vector<const ScalarRecord*> PairLosses(std::span<const ScalarRecord> a,
                                            std::span<const ScalarRecord> b) {
  std::map<std::pair<std::string_view, std::uint32_t>, std::deque<const ScalarRecord*>> unpaired;
  for (const ScalarRecord& loss : b) unpaired[{loss.name, loss.micro_batch}].push_back(&loss);
  std::vector<const ScalarRecord*> counterparts;
  for (const ScalarRecord& loss : a) {
    auto& left = unpaired[{loss.name, loss.micro_batch}];
    counterparts.push_back(left.empty() ? nullptr : left.front());
    if (!left.empty()) left.pop_front();
  }
  return counterparts;
}

bool LossesDiffer(const std::vector<ScalarRecord>& a, const std::vector<ScalarRecord>& b) {
  if (a == b) return false;
  const auto counterparts = PairLosses(a, b);
  return !std::equal(a.begin(), a.end(), counterparts.begin(),
                     [](const ScalarRecord& loss, const ScalarRecord* other) {
                       return other == nullptr || RelativeDifference(loss.value, other->value) == 0;
                     });
}

Divergence MakeLossRow(const DiffContext& context, std::uint64_t step, std::uint32_t rank,
                       const ScalarRecord& of_a, double value_b, double distance) {
  Divergence row{.step = step,
                 .micro_batch = of_a.micro_batch,
                 .rank = rank,
                 .stage = Stage::kLoss,
                 .activation = of_a.name};
  row.distance = distance;
  row.distance_kind = DistanceKind::kStatistics;
  row.tolerance = context.tolerance.value_or(DefaultTolerance(DType::kF32, DType::kF32));
  row.mode = Name(Mode::kTrain);
  row.a = ObservationSide{.value = of_a.value};
  row.b = ObservationSide{.value = value_b};
  return row;
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
  const auto counterparts = PairLosses(at.losses_a, at.losses_b);
  for (const ScalarRecord& loss : at.losses_b) names_b_.insert(loss.name);
  alone_ += at.losses_b.size();
  std::uint64_t position = 0;
  for (std::size_t i = 0; i < at.losses_a.size(); ++i) {
    const ScalarRecord& loss = at.losses_a[i];
    names_a_.insert(loss.name);
    if (counterparts[i] == nullptr) {
      ++alone_;
      continue;
    }
    --alone_;
    const Spot spot = at.loss_spots.empty() ? Spot{0, loss.micro_batch} : at.loss_spots[i];
    ReportOrder place = MakeReportOrder(Stage::kLoss, spot.pass, false, ++position, at.ranks.a);
    place.segment = spot.segment;
    STATCOLLECT_RETURN_IF_ERROR(ComparePair(loss, counterparts[i]->value, place, at));
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
  Divergence row = MakeLossRow(context_, at.step, at.ranks.a, a, b, distance);
  row.tolerance = comparison.tolerance;
  row.times_noise = comparison.times_noise;
  row.segment = place.segment;
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
