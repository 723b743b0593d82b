// How one tensor is made from its counterpart: times a factor, or in another order.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "common/names.h"
#include "server/query/cause/constants.h"
#include "server/query/cause/linear.h"
#include "server/query/cause/rules.h"
#include "server/query/cause/text.h"
#include "server/query/compare/distance.h"
#include "server/query/compare/roundoff.h"

namespace statcollect::query::cause {
namespace {

Cause About(const Evidence& evidence, std::string rule, const std::string& what,
            Confidence confidence) {
  return {.rule = std::move(rule),
          .text = TensorText(evidence.root) + " in " + evidence.b.name() + " is " + what +
                  " that in " + evidence.a.name() + " " + evidence.AtStep(),
          .confidence = confidence,
          .key = evidence.root.activation,
          .a = {},
          .b = {}};
}

Found AsFactor(const Evidence& evidence, const Observation& a, const Observation& b) {
  if (a.stats->numel < kElementsMin || !IsFloat(a.layout->dtype)) return std::nullopt;
  auto fit = FitFactor(a, b);
  const auto others = FactorOfOthers(evidence);
  if (fit && others) fit->factor /= *others;
  if (!fit || !fit->Explains()) return std::nullopt;
  const double slack = std::max(kMultipleRoundoffs * UnitRoundoff(b.layout->dtype), kFlipSlack);
  const double change = std::abs(fit->factor - 1);
  const bool flipped = std::abs(fit->factor + 1) <= slack + 3 * fit->residual;
  if (!flipped && !fit->Explains(evidence.RemainderOf(a))) return std::nullopt;
  const bool certain = fit->from_sketch && fit->residual * kCertainFit <= change;
  const Confidence confidence = certain                                ? Confidence::kCertain
                                : fit->residual * kLikelyFit <= change ? Confidence::kLikely
                                                                       : Confidence::kPossible;
  if (flipped) {
    auto cause = About(evidence, "sign_flip", "", confidence);
    cause.text = TensorText(evidence.root) + " in " + evidence.b.name() +
                 " has the opposite sign of that in " + evidence.a.name() + " " + evidence.AtStep();
    return cause;
  }
  auto cause = About(evidence, "tensor_scale", FactorText(fit->factor), confidence);
  if (others)
    cause.text += ", apart from clipping, which makes all other gradients " + FactorText(*others) +
                  " those in " + evidence.a.name();
  return cause;
}

bool SameValues(const Observation& a, const Observation& b) {
  const TensorStats &x = *a.stats, &y = *b.stats;
  const bool counts = x.numel == y.numel && x.nan == y.nan && x.pos_inf == y.pos_inf &&
                      x.neg_inf == y.neg_inf && x.zero == y.zero && x.neg == y.neg &&
                      x.pos == y.pos;
  const bool extremes =
      x.has_finite && y.has_finite && x.min == y.min && x.max == y.max && x.min < x.max;
  if (!counts || !extremes) return false;
  const double size = x.l2 / std::sqrt(std::max(1.0, FiniteCount(a)));
  return Near(x.l1, y.l1, kSameMoments) && Near(x.l2, y.l2, kSameMoments) &&
         Near(x.std, y.std, kSameMoments) && std::abs(x.mean - y.mean) <= kSameMoments * size;
}

bool TellAll(const Observation& x) {
  constexpr Statistic kNeeded[] = {Statistic::kMin, Statistic::kMax, Statistic::kMean,
                                   Statistic::kStd, Statistic::kL1,  Statistic::kL2,
                                   Statistic::kZero};
  return std::all_of(std::begin(kNeeded), std::end(kNeeded),
                     [&](Statistic statistic) { return x.layout->Trusts(statistic); });
}

Found AsOrder(const Evidence& evidence, const Observation& a, const Observation& b) {
  const bool known = TellAll(a) && TellAll(b) && a.layout->dtype == b.layout->dtype;
  if (!known || a.stats->numel < kElementsMin || !SameValues(a, b)) return std::nullopt;
  if (Pair{.a = &a, .b = &b}.SameBits()) return std::nullopt;
  const bool same_shape = a.layout->shape == b.layout->shape;
  if (same_shape && !(Measure(a, b).value > kOtherOrder)) return std::nullopt;
  auto cause = About(evidence, "permuted", "", Confidence::kLikely);
  const auto &shape_a = a.layout->shape, &shape_b = b.layout->shape;
  if (shape_a != shape_b) {
    auto sorted_a = shape_a, sorted_b = shape_b;
    std::sort(sorted_a.begin(), sorted_a.end());
    std::sort(sorted_b.begin(), sorted_b.end());
    if (sorted_a != sorted_b) return std::nullopt;
    cause.rule = "transposed";
    cause.confidence = Confidence::kCertain;
    cause.text = TensorText(evidence.root) + " has the same values in both runs " +
                 evidence.AtStep() + " with its dimensions in a different order: it is transposed";
    return cause;
  }
  // Few values of an integer tensor may add up to the same by chance.
  if (a.stats->numel >= kElementsOfMultiple &&
      (IsFloat(a.layout->dtype) || a.stats->max - a.stats->min > 8))
    cause.confidence = Confidence::kCertain;
  const bool square =
      shape_a.size() >= 2 && shape_a[shape_a.size() - 1] == shape_a[shape_a.size() - 2];
  cause.text = TensorText(evidence.root) + " in " + evidence.b.name() +
               " has the values of that in " + evidence.a.name() + " " + evidence.AtStep() +
               " in a different order" + (square ? ": permuted or transposed" : "");
  return cause;
}

bool IsWeightLike(const Divergence& root) {
  return root.kind == Kind::kWeight || root.stage == Stage::kBatch || root.kind == Kind::kBuffer;
}

// Another tensor of the root's kind; of a batch, another part of it.
bool IsAnother(const TensorKey& key, const Divergence& root) {
  if (key.kind != root.kind) return false;
  if (key.kind != Kind::kBatch) return key.name != root.activation;
  return key.micro_batch == root.micro_batch && key.call == root.call &&
         (key.name != root.activation || key.output_path != root.output_path);
}

const Observation* FindEqual(const std::vector<const StepData*>& steps, const Divergence& root,
                             const Observation& wanted) {
  const Layout& layout = *wanted.layout;
  if (!layout.Trusts(Statistic::kHash) || !IsContent(layout.hash_kind)) return nullptr;
  for (const StepData* step : steps) {
    for (const Observation& seen : step->observations) {
      if (IsAnother(seen.def->key, root) && seen.stats->hash == wanted.stats->hash &&
          seen.stats->numel == wanted.stats->numel && seen.layout->dtype == layout.dtype &&
          seen.layout->hash_kind == layout.hash_kind && seen.layout->Trusts(Statistic::kHash))
        return &seen;
    }
  }
  return nullptr;
}

}  // namespace

Found FindOtherTensor(const Evidence& evidence) {
  const Divergence& root = evidence.root;
  if (!IsWeightLike(root) || evidence.b.root == nullptr) return std::nullopt;
  const Observation& b = *evidence.b.root;
  if (b.stats->numel < kElementsMin || !(b.stats->min < b.stats->max)) return std::nullopt;
  // Weights are sought in the step before, too.
  std::vector<const StepData*> steps = {&evidence.a.at};
  if (root.stage != Stage::kBatch) steps.push_back(&evidence.a.before);
  const Observation* equal = FindEqual(steps, root, b);
  if (equal == nullptr) return std::nullopt;
  return Make("other_tensor",
              TensorText(root) + " in " + evidence.b.name() + " equals " +
                  PlaceText(equal->def->key) + " in " + evidence.a.name() + " bit for bit " +
                  evidence.AtStep(),
              Confidence::kCertain, root.activation, {}, equal->def->key.name);
}

// A gradient that was lost, or a module that was switched off. Others may follow from it, by
// clipping for one.
Found FindAllZero(const Evidence& evidence) {
  const Stage stage = evidence.root.stage;
  if (!evidence.HasRootPair() || stage == Stage::kLoss || stage == Stage::kBatch)
    return std::nullopt;
  const TensorStats &a = *evidence.a.root->stats, &b = *evidence.b.root->stats;
  const bool known = evidence.a.root->layout->Trusts(Statistic::kZero) &&
                     evidence.b.root->layout->Trusts(Statistic::kZero);
  if (!known || a.numel < kElementsMin || a.numel != b.numel) return std::nullopt;
  const bool in_a = a.zero == a.numel && 2 * b.zero < b.numel,
             in_b = b.zero == b.numel && 2 * a.zero < a.numel;
  if (!in_a && !in_b) return std::nullopt;
  return Make("all_zero",
              TensorText(evidence.root) + " is zero in every element in " +
                  (in_a ? evidence.a : evidence.b).name() + " " + evidence.AtStep() +
                  ", and not in " + (in_a ? evidence.b : evidence.a).name(),
              Confidence::kCertain, evidence.root.activation);
}

Found FindTensorRelation(const Evidence& evidence) {
  const Reason reason = evidence.root.reason;
  if (!evidence.HasRootPair() || evidence.root.stage == Stage::kLoss || reason == Reason::kOrder)
    return std::nullopt;
  if (FindGradientScale(evidence)) return std::nullopt;  // it is one of many with that factor
  const Observation &a = *evidence.a.root, &b = *evidence.b.root;
  if (auto found = AsOrder(evidence, a, b)) return found;
  if (a.layout->shape != b.layout->shape) return std::nullopt;
  return AsFactor(evidence, a, b);
}

}  // namespace statcollect::query::cause
