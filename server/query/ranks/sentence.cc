#include "server/query/ranks/sentence.h"

#include "common/names.h"
#include "common/text.h"
#include "server/query/number_text.h"

namespace statcollect::query {
namespace {

std::string TensorOf(const RankFinding& f) {
  std::string text = Printable(f.activation);
  if (!f.output_path.empty() && f.output_path != "0") text += "[" + Printable(f.output_path) + "]";
  return text;
}

std::string KindAndTensor(const RankFinding& f) {
  return std::string(Name(f.kind)) + " " + TensorOf(f);
}

bool IsOne(const Ranks& ranks) { return ranks.size() == 1; }

std::string WhoOf(const RankFinding& f) { return RanksNamed("Rank", f.ranks); }

std::string AgainstOf(const RankFinding& f) {
  return f.others.empty() ? "" : RanksNamed(" rank", f.others);
}

// " (distance 0.33)"; " (rank 1's is 0.67 times rank 0's)"
std::string FarText(const RankFinding& f) {
  if (f.factor) {
    return " (rank " + std::to_string(f.factor_of) + "'s is " + ShortNumber(*f.factor) +
           " times rank " + std::to_string(f.factor_to) + "'s)";
  }
  return f.distance ? " (distance " + ShortNumber(*f.distance) + ")" : "";
}

std::string ReplicasDiffer(const RankFinding& f) {
  const std::string far = FarText(f);
  const std::string what = f.reason == RankReason::kStateDiffers
                               ? "optimizer state of " + TensorOf(f)
                           : f.reason == RankReason::kGradientsDiffer
                               ? "gradient of " + TensorOf(f)
                               : TensorOf(f) + (f.mode == "init"   ? " as loaded"
                                                : f.mode == "eval" ? " as recorded in evaluation"
                                                                   : " after the update");
  if (f.others.empty()) {
    std::string text = WhoOf(f) + " do not agree on " + what + far;
    if (f.reason == RankReason::kGradientsDiffer)
      text += f.factor ? ": does each rank scale by itself?"
                       : ": was the reduction over the ranks skipped?";
    return text + (text.back() == '?' ? "" : ".");
  }
  if (!f.outvoted && f.reason == RankReason::kWeightsDiffer && f.mode != "init") {
    return WhoOf(f) + " kept the old " + TensorOf(f) + " while" + AgainstOf(f) + " updated theirs" +
           far + ".";
  }
  return WhoOf(f) + (IsOne(f.ranks) ? " does" : " do") + " not have the " + what + " of" +
         AgainstOf(f) + far + ".";
}

std::string ShapeDiffers(const RankFinding& f) {
  const char* const verb = f.others.empty() ? " do not agree"
                           : IsOne(f.ranks) ? " differs"
                                            : " differ";
  return WhoOf(f) + verb + (f.others.empty() ? "" : " from" + AgainstOf(f)) +
         " in shape or dtype of " + KindAndTensor(f) + ".";
}

std::string SameBatch(const RankFinding& f) {
  return WhoOf(f) + " were fed the same data in " + std::to_string(f.steps) +
         (f.steps == 1 ? " step: " : " steps: ") + "is the data set sharded over the ranks?";
}

std::string FrozenWeight(const RankFinding& f) {
  return TensorOf(f) +
         (f.activations > 1 ? " and " + std::to_string(f.activations - 1) + " more weights" : "") +
         " never changed on " + RanksNamed("rank", f.ranks) +
         " although the gradient is not zero (rms " + ShortNumber(f.value.value_or(0)) +
         "): not in the optimizer, a learning rate of 0, or an update below the dtype's "
         "resolution?";
}

std::string LossDiffers(const RankFinding& f) {
  return Printable(f.activation) + " was equal on all ranks until step " + std::to_string(f.step) +
         ": " + ShortNumber(f.value.value_or(0)) + " on " + RanksNamed("rank", f.ranks) + ", " +
         ShortNumber(f.expected.value_or(0)) +
         (f.others.empty() ? " on another." : " on" + AgainstOf(f) + ".");
}

std::string Nonfinite(const RankFinding& f) {
  return (f.stage == Stage::kLoss ? Printable(f.activation) : KindAndTensor(f)) + " of " +
         RanksNamed("rank", f.ranks) + " has NaN or infinities," + AgainstOf(f) +
         (IsOne(f.others) ? " has" : " have") + " none.";
}

std::string Outlier(const RankFinding& f) {
  return WhoOf(f) + " is unlike the others: rms of " + KindAndTensor(f) + " is " +
         ShortNumber(f.value.value_or(0)) + ", the median over the ranks " +
         ShortNumber(f.expected.value_or(0)) + ".";
}

std::string MissingTensor(const RankFinding& f) {
  return WhoOf(f) + (IsOne(f.ranks) ? " does" : " do") + " not have " + KindAndTensor(f) + "," +
         AgainstOf(f) + (IsOne(f.others) ? " does." : " do.");
}

}  // namespace

std::string Sentence(const RankFinding& finding) {
  switch (finding.reason) {
    case RankReason::kWeightsDiffer:
    case RankReason::kStateDiffers:
    case RankReason::kGradientsDiffer:
      return ReplicasDiffer(finding);
    case RankReason::kShapeDiffers:
      return ShapeDiffers(finding);
    case RankReason::kSameBatch:
      return SameBatch(finding);
    case RankReason::kFrozenWeight:
      return FrozenWeight(finding);
    case RankReason::kLossDiffers:
      return LossDiffers(finding);
    case RankReason::kNonfinite:
      return Nonfinite(finding);
    case RankReason::kOutlier:
      return Outlier(finding);
    case RankReason::kMissingActivation:
      return MissingTensor(finding);
    default:
      return finding.text;
  }
}

}  // namespace statcollect::query
