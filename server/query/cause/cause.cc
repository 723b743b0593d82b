#include "server/query/cause/cause.h"

#include <array>
#include <utility>

#include "server/query/cause/evidence.h"
#include "server/query/cause/rules.h"

namespace statcollect::query {
namespace {

using cause::Evidence;
using cause::Found;

// Most specific first: it decides between causes of equal confidence.
constexpr std::array kFinders = {
    cause::FindEvaluationMode, cause::FindModuleSetting, cause::FindModuleReplaced,
    cause::FindModelStructure, cause::FindUntrained,     cause::FindOptimizerSetting,
    cause::FindZeroGrad,       cause::FindNotUpdated,    cause::FindResume,
    cause::FindDropout,        cause::FindAllZero,       cause::FindGradientScale,
    cause::FindOtherTensor,
};

// These say how a tensor differs rather than why: a likely reason is worth more than a certain description.
constexpr std::array kDescriptions = {
    cause::FindTensorRelation, cause::FindCast,           cause::FindTieBroken,
    cause::FindRandomState,    cause::FindEvaluationOnly, cause::FindConvolutionLibrary,
    cause::FindConfiguration,
};

// These read more of the store, and only for the roots that they can explain.
constexpr std::array kReadingFinders = {cause::FindReduction, cause::FindBatchOrder};

void Take(Found found, Found& best) {
  if (found && (!best || found->confidence < best->confidence)) best = std::move(found);
}

bool IsLikely(const Found& found) { return found && found->confidence <= Confidence::kLikely; }

}  // namespace

Result<std::optional<Cause>> FindCause(const CauseQuestion& question, const std::stop_token& stop) {
  if (!question.steps.contains(question.root.step)) return std::optional<Cause>();
  auto evidence = cause::Gather(question, stop);
  if (!evidence.ok()) return evidence.status();
  Found best;
  for (const auto rule : kReadingFinders) {
    if (stop.stop_requested()) return Status(Code::kCancelled, "diff: cancelled");
    auto found = rule(*evidence, stop);
    if (!found.ok()) return found.status();
    Take(*std::move(found), best);
  }
  for (const auto rule : kFinders) Take(rule(*evidence), best);
  if (IsLikely(best)) return best;
  for (const auto rule : kDescriptions) Take(rule(*evidence), best);
  return best;
}

}  // namespace statcollect::query
