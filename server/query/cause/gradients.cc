// One factor on all gradients, and gradients that were not set to zero.
#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "server/query/cause/constants.h"
#include "server/query/cause/linear.h"
#include "server/query/cause/rules.h"
#include "server/query/cause/text.h"
#include "server/query/compare/step_order.h"

namespace statcollect::query::cause {
namespace {

// All but one, or nearly all.
bool AreMost(std::size_t some, std::size_t all) {
  return some + 1 >= all || static_cast<double>(some) >= kNearlyAll * static_cast<double>(all);
}

double MeanSquareRoot(const Observation& seen) {
  return seen.stats->numel > 0 ? seen.stats->l2 / std::sqrt(static_cast<double>(seen.stats->numel))
                               : 0;
}

// Removes gradients that are pure rounding.
std::vector<Pair> WithoutNoise(std::vector<Pair> pairs) {
  double largest = 0;
  for (const Pair& pair : pairs) largest = std::max(largest, MeanSquareRoot(*pair.a));
  std::erase_if(pairs, [&](const Pair& pair) {
    return !(MeanSquareRoot(*pair.a) > kTinyShare * largest) || !std::isfinite(pair.b->stats->l2);
  });
  return pairs;
}

std::vector<Pair> GradientsOf(const Evidence& evidence) {
  const bool of_weights = evidence.root.stage == Stage::kGrad;
  auto pairs = evidence.PairsOf(of_weights ? Kind::kWeightGrad : Kind::kGradOutput);
  if (!of_weights) {
    std::erase_if(pairs, [&](const Pair& pair) {
      return pair.key().micro_batch != evidence.root.micro_batch;
    });
  }
  return WithoutNoise(std::move(pairs));
}

struct CommonFactor {
  double factor = 1;
  std::size_t tensors = 0, of = 0;
  bool from_sketches = false;
};

// How far from a common factor a gradient's own may be.
double SlackOf(double factor) { return std::min(kSlackMax, std::abs(factor - 1) / kOfChange); }

// The one factor between nearly all of them, if there is one other than 1. A gradient that has the
// same bits has none.
std::optional<CommonFactor> FindCommonFactor(const Evidence& evidence) {
  struct Explained : Fit {
    bool explains = false;
  };
  const std::vector<Pair> pairs = GradientsOf(evidence);
  std::vector<Explained> fits;
  for (const Pair& pair : pairs) {
    if (pair.SameBits()) return std::nullopt;
    if (const auto fit = FitFactor(*pair.a, *pair.b))
      fits.push_back({*fit, fit->Explains(evidence.RemainderOf(*pair.a))});
  }
  if (fits.size() < 2 || !AreMost(fits.size(), pairs.size())) return std::nullopt;
  const auto middle = fits.begin() + static_cast<std::ptrdiff_t>(fits.size() / 2);
  std::nth_element(fits.begin(), middle, fits.end(),
                   [](const Fit& x, const Fit& y) { return x.factor < y.factor; });
  CommonFactor common{.factor = middle->factor, .of = pairs.size(), .from_sketches = true};
  if (common.factor == 0) return std::nullopt;
  const double slack = SlackOf(common.factor);
  for (const Explained& fit : fits) {
    if (!fit.explains || std::abs(fit.factor / common.factor - 1) > slack) continue;
    ++common.tensors;
    common.from_sketches = common.from_sketches && fit.from_sketch;
  }
  return common.tensors >= 2 && AreMost(common.tensors, common.of) ? std::optional(common)
                                                                   : std::nullopt;
}

// Not a number where it is not known: then it is near nothing.
double NormOf(const std::optional<double>& norm) {
  return norm.value_or(std::numeric_limits<double>::quiet_NaN());
}

// Whether the root's gradient does not have the factor that clipping to the same norm gave the
// others.
bool IsException(const Evidence& evidence, const CommonFactor& common) {
  if (evidence.root.stage != Stage::kGrad || !evidence.HasRootPair()) return false;
  const auto own = FitFactor(*evidence.a.root, *evidence.b.root);
  return own && std::abs(own->factor / common.factor - 1) > SlackOf(common.factor) &&
         Near(NormOf(evidence.a.norm), NormOf(evidence.b.norm),
              kNormsAgree * std::abs(common.factor - 1));
}

// What the factor means: as likely as that is, if it is known from the number alone.
using Meant = Found;

// How far the norm of all gradients is from that of the step before, as a ratio's logarithm: the
// run that departs is the one whose norm has changed more. 0: not known.
double ChangeOf(const Side& side) {
  const double change = std::abs(std::log(NormOf(side.norm) / NormOf(side.norm_before)));
  return std::isfinite(change) ? change : 0;
}

Meant AsLossScale(const Evidence& evidence, double factor) {
  const std::uint64_t step = evidence.root.step;
  const auto a = evidence.a.LatestScalar("loss_scale", step),
             b = evidence.b.LatestScalar("loss_scale", step);
  const auto scale = [](const std::optional<double>& known) {
    return known && *known > 0 ? *known : 1.0;
  };
  const auto [text_a, text_b] = NumberTexts(scale(a), scale(b));
  if (scale(a) != scale(b) && Near(factor, scale(b) / scale(a), kMatches))
    return Make(
        "loss_scale",
        "the loss scale is " + InBoth(evidence, a ? text_a : "not set", b ? text_b : "not set"),
        Confidence::kCertain, "loss_scale", a ? text_a : "", b ? text_b : "");
  const bool in_b = b && Near(factor, *b, kMatches), in_a = a && Near(1 / factor, *a, kMatches);
  if ((!in_a && !in_b) || scale(in_b ? b : a) == 1) return std::nullopt;
  const Side &larger = in_b ? evidence.b : evidence.a, &smaller = in_b ? evidence.a : evidence.b;
  const bool smaller_departs = ChangeOf(smaller) > ChangeOf(larger);
  return Make("loss_scale",
              "that is the loss scale: the gradients of " +
                  (smaller_departs ? smaller.name() + " are divided by it twice"
                                   : larger.name() + " are not unscaled"),
              Confidence::kCertain, "loss_scale", a ? text_a : "", b ? text_b : "");
}

// The recorded scales of the losses, which the verdict takes into account.
bool AreLossScales(const Evidence& evidence, double factor) {
  const std::uint64_t step = evidence.root.step;
  const auto a = evidence.a.ScalarAt("loss_scale", step),
             b = evidence.b.ScalarAt("loss_scale", step);
  return (a || b) && Near(factor, b.value_or(1) / a.value_or(1), kMatches);
}

// Clipped gradients have a norm that somebody chose: a round one, or the same as in the step
// before.
bool IsClipped(const Side& side) {
  return IsRound(NormOf(side.norm)) || Near(NormOf(side.norm), NormOf(side.norm_before), kSameNorm);
}

// A norm that somebody chose, divided by the loss scale.
Meant AsClippedBeforeUnscaling(const Evidence& evidence) {
  const auto scale_of = [&](const Side& side) {
    return side.LatestScalar("loss_scale", evidence.root.step).value_or(1);
  };
  const auto early = [&](const Side& side) {
    const double norm = NormOf(side.norm);
    return scale_of(side) > 1 && !IsRound(norm) && IsRound(norm * scale_of(side));
  };
  if (early(evidence.a) == early(evidence.b)) return std::nullopt;
  const Side& side = early(evidence.a) ? evidence.a : evidence.b;
  const double scale = scale_of(side);
  const auto [text_a, text_b] = NumberTexts(NormOf(evidence.a.norm), NormOf(evidence.b.norm));
  return Make("clip_norm",
              "those of " + side.name() + " have a norm of " +
                  WithFewDigits(NormOf(side.norm) * scale) + " times 1 / " + NumberText(scale) +
                  ", the loss scale: they are clipped before they are unscaled",
              Confidence::kCertain, "grad_norm", text_a, text_b);
}

Meant AsClipping(const Evidence& evidence, double factor) {
  const double a = NormOf(evidence.a.norm), b = NormOf(evidence.b.norm);
  const bool clipped_a = IsClipped(evidence.a), clipped_b = IsClipped(evidence.b);
  if (std::isnan(a) || std::isnan(b)) return std::nullopt;
  if (!clipped_a && !clipped_b) return std::nullopt;
  // To the same norm: another gradient is larger, and all of them make room for it.
  if (clipped_a && clipped_b && Near(a, b, kNormsAgree * std::abs(factor - 1))) return std::nullopt;
  auto [text_a, text_b] = NumberTexts(a, b);
  if (clipped_a) text_a = WithFewDigits(a);
  if (clipped_b) text_b = WithFewDigits(b);
  Cause meaning =
      Make("clip_norm", "the norm of all of them is " + InBoth(evidence, text_a, text_b),
           Confidence::kCertain, "grad_norm", text_a, text_b);
  if (clipped_a && clipped_b) {
    meaning.text += ": they are clipped to different norms";
  } else {
    meaning.text += ": those of " + (clipped_a ? evidence.a : evidence.b).name() +
                    " are clipped, those of " + (clipped_a ? evidence.b : evidence.a).name() +
                    " are not";
  }
  return meaning;
}

Meant AsCount(const Evidence& evidence, double factor) {
  const bool grad = evidence.root.stage == Stage::kGrad;
  const std::uint32_t world_a = evidence.a.world_size, world_b = evidence.b.world_size;
  const std::uint32_t micro_a = evidence.a.micro_batches, micro_b = evidence.b.micro_batches;
  const auto is = [&](std::uint32_t count) {
    return count > 1 && (Near(factor, count, kMatches) || Near(1 / factor, count, kMatches));
  };
  const Side &larger = factor > 1 ? evidence.b : evidence.a,
             &smaller = factor > 1 ? evidence.a : evidence.b;
  // Activations' gradients are not summed over ranks.
  if (grad && world_a == world_b && is(world_a))
    return Make("gradient_scale",
                "there are " + std::to_string(world_a) + " ranks: " + larger.name() +
                    " sums gradients over them where " + smaller.name() + " averages",
                Confidence::kCertain, "world_size", std::to_string(world_a),
                std::to_string(world_b));
  if (micro_a != micro_b || !is(micro_a)) return std::nullopt;
  return Make("gradient_scale",
              "there are " + std::to_string(micro_a) + " micro-batches: " + smaller.name() +
                  " divides the loss by their number, " + larger.name() + " does not",
              Confidence::kCertain, "micro_batches", std::to_string(micro_a),
              std::to_string(micro_b));
}

Meant FindMeaning(const Evidence& evidence, double factor) {
  if (factor < 0) return std::nullopt;
  if (auto meant = AsClippedBeforeUnscaling(evidence)) return meant;
  if (auto meant = AsLossScale(evidence, factor)) return meant;
  if (auto meant = AsCount(evidence, factor)) return meant;
  return evidence.root.stage == Stage::kGrad ? AsClipping(evidence, factor) : Meant();
}

// The gradient at the previous update: in the same step, or the last one of the previous step.
struct Previous {
  const Observation* gradient = nullptr;
  bool in_same_step = false;
};

Previous PreviousOf(const Side& side, const Observation& gradient) {
  const TensorKey& key = gradient.def->key;
  Previous found;
  for (const StepData* step : {&side.before, &side.at}) {
    for (const Observation& seen : step->observations) {
      const TensorKey& other = seen.def->key;
      const bool same = other.kind == Kind::kWeightGrad && other.name == key.name &&
                        other.output_path == key.output_path;
      if (same && (step == &side.before || seen.order < gradient.order))
        found = {.gradient = &seen, .in_same_step = step == &side.at};
    }
  }
  return found;
}

// Counts the gradients that include the previous step's gradient. An optimizer that cleared its own
// gradients has none of these, so agreement says nothing about other optimizers.
struct OnTop {
  std::size_t seen = 0, considered = 0, on_top = 0, without = 0;
  bool root = false;         // the root's is one of them
  bool in_same_step = true;  // as the previous gradients
  bool Holds() const {
    const std::size_t explained = on_top + without;
    return root && on_top >= 2 && 2 * considered >= seen &&
           static_cast<double>(explained) >= kMost * static_cast<double>(considered);
  }
};

// How much of each a sum has. Clipping divides the sum by its norm, and the other run's gradient by
// its own.
struct Shares {
  double plain = 1, previous = 1;
};

// The root's gradient; if that has too few elements to tell two shares apart, the largest one of
// the step.
Pair ReferenceOf(const Evidence& evidence) {
  Pair reference{.a = evidence.a.root, .b = evidence.b.root};
  if (reference.a->stats->numel >= kElementsForShares) return reference;
  for (const Pair& pair : evidence.PairsOf(Kind::kWeightGrad)) {
    if (pair.a->stats->numel > reference.a->stats->numel) reference = pair;
  }
  return reference;
}

// By least squares from one gradient.
std::optional<Shares> SharesOf(const Evidence& evidence, bool summed_is_b) {
  const Pair reference = ReferenceOf(evidence);
  const Observation& summed = summed_is_b ? *reference.b : *reference.a;
  const Observation& plain = summed_is_b ? *reference.a : *reference.b;
  const Side& side = summed_is_b ? evidence.b : evidence.a;
  if (!IsClipped(side)) return std::nullopt;
  const Observation* const previous = PreviousOf(side, summed).gradient;
  if (previous == nullptr || !HaveSketches(summed, plain) || !HaveSketches(summed, *previous))
    return std::nullopt;
  const Sketch x = SketchOf(plain), y = SketchOf(*previous), z = SketchOf(summed);
  const double xx = Dot(x, x), yy = Dot(y, y), xy = Dot(x, y), xz = Dot(x, z), yz = Dot(y, z);
  const double determinant = xx * yy - xy * xy;
  if (!(determinant > kDeterminantMin * xx * yy)) return std::nullopt;
  const Shares shares{.plain = (xz * yy - yz * xy) / determinant,
                      .previous = (yz * xx - xz * xy) / determinant};
  const auto sensible = [](double share) { return share > kShareMin && share < kShareMax; };
  const bool clips = shares.previous < 1 && shares.plain > kOwnShareMin * shares.previous;
  return clips && sensible(shares.plain) && sensible(shares.previous) ? std::optional(shares)
                                                                      : std::nullopt;
}

// Counts gradients of the root's update. `summed_is_b`: B, otherwise A, is the run whose gradients
// may include its previous ones.
OnTop CountOnTop(const Evidence& evidence, bool summed_is_b, const Shares& shares) {
  const StepOrder order(evidence.a.at.observations);
  const auto segment_of = [&](const Observation& seen) { return order.At(seen.order).segment; };
  const Side& side = summed_is_b ? evidence.b : evidence.a;
  OnTop count;
  for (const Pair& pair : WithoutNoise(evidence.PairsOf(Kind::kWeightGrad))) {
    if (segment_of(*pair.a) != segment_of(*evidence.a.root)) continue;
    ++count.seen;
    const Observation &summed = summed_is_b ? *pair.b : *pair.a,
                      &plain = summed_is_b ? *pair.a : *pair.b;
    const auto [previous, in_same_step] = PreviousOf(side, summed);
    if (previous == nullptr || !HaveSketches(summed, plain) || !HaveSketches(summed, *previous))
      continue;
    ++count.considered;
    const Sketch difference = Minus(SketchOf(summed), Times(SketchOf(plain), shares.plain));
    const Sketch old = Times(SketchOf(*previous), shares.previous);
    if (Norm(difference) <= kRemainder * Norm(old)) {
      ++count.without;
    } else if (Norm(Minus(difference, old)) <= kRemainder * Norm(difference)) {
      ++count.on_top;
      count.root = count.root || pair.a == evidence.a.root;
      count.in_same_step = count.in_same_step && in_same_step;
    }
  }
  return count;
}

}  // namespace

std::optional<double> FactorOfOthers(const Evidence& evidence) {
  const auto common = FindCommonFactor(evidence);
  return common && IsException(evidence, *common) ? std::optional(common->factor) : std::nullopt;
}

Found FindGradientScale(const Evidence& evidence) {
  const Stage stage = evidence.root.stage;
  const bool of_weights = stage == Stage::kGrad;
  if (!of_weights && stage != Stage::kBackward && stage != Stage::kLoss) return std::nullopt;
  const auto common = FindCommonFactor(evidence);
  if (!common || (!of_weights && AreLossScales(evidence, common->factor))) return std::nullopt;
  if (IsException(evidence, *common)) return std::nullopt;
  if (evidence.HasRootPair()) {  // it has a factor of its own, and the others follow from it
    const auto own = FitFactor(*evidence.a.root, *evidence.b.root);
    if (own && std::abs(own->factor - 1) > kFarFromCommon * std::abs(common->factor - 1))
      return std::nullopt;
  }
  const auto meaning = FindMeaning(evidence, common->factor);
  Cause cause = meaning.value_or(Make("gradient_scale", "", Confidence::kCertain));
  if (!common->from_sketches) cause.confidence = Confidence::kLikely;
  const std::string count = std::to_string(common->tensors);
  cause.text = (common->tensors == common->of ? "all " + count
                                              : count + " of " + std::to_string(common->of)) +
               " gradients of " + (of_weights ? "weights" : "outputs") + " in " +
               evidence.b.name() + " are " + FactorText(common->factor) + " those in " +
               evidence.a.name() + " " + evidence.AtStep() + (meaning ? "; " + meaning->text : "");
  return cause;
}

Found FindZeroGrad(const Evidence& evidence) {
  if (evidence.root.stage != Stage::kGrad || !evidence.HasRootPair()) return std::nullopt;
  bool in_b = false;
  OnTop count;
  for (const bool clipped : {false, true}) {
    for (const bool summed_is_b : {true, false}) {
      const auto shares = clipped ? SharesOf(evidence, summed_is_b) : Shares();
      if (!shares || count.Holds()) continue;
      in_b = summed_is_b;
      count = CountOnTop(evidence, summed_is_b, *shares);
    }
  }
  if (!count.Holds()) return std::nullopt;
  const Side &summed = in_b ? evidence.b : evidence.a, &plain = in_b ? evidence.a : evidence.b;
  Cause cause{.rule = "zero_grad", .confidence = Confidence::kCertain};
  if (count.without > 0)
    cause.text = std::to_string(count.on_top) + " of " + std::to_string(count.seen) + " ";
  cause.text += "gradients in " + summed.name() + " " + evidence.AtStep() + " are those in " +
                plain.name() + " plus its own of ";
  cause.text += count.in_same_step ? "the update before"
                                   : "step " + std::to_string(evidence.step_before.value_or(0));
  cause.text += std::string(": they were not set to zero between the ") +
                (count.in_same_step ? "updates" : "steps") + " (zero_grad)";
  return cause;
}

}  // namespace statcollect::query::cause
