#include "server/query/cause/cause.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <set>
#include <string>
#include <utility>

#include "server/query/cause/constants.h"
#include "server/query/cause/evidence.h"
#include "server/query/cause/rules.h"
#include "server/query/compare/roundoff.h"

namespace statcollect::query {
namespace {

using cause::Causes;
using cause::Evidence;
using cause::Found;

template <Found (*kRule)(const Evidence&)>
Causes One(const Evidence& evidence) {
  Found found = kRule(evidence);
  return found ? Causes{*std::move(found)} : Causes{};
}

// Most specific first: it decides between causes of equal confidence.
constexpr std::array kFinders = {
    One<cause::FindEvaluationMode>, cause::FindModuleSettings,   One<cause::FindModuleReplaced>,
    One<cause::FindModelStructure>, One<cause::FindUntrained>,   cause::FindOptimizerSettings,
    One<cause::FindZeroGrad>,       One<cause::FindNotUpdated>,  One<cause::FindChangedBeside>,
    One<cause::FindResume>,         One<cause::FindDropout>,     One<cause::FindAllZero>,
    One<cause::FindGradientScale>,  One<cause::FindOtherTensor>, One<cause::FindUnobserved>,
    One<cause::FindLossTerm>,
};

// These say how a tensor differs rather than why: a likely reason is worth more than a certain
// description.
constexpr std::array kDescriptions = {One<cause::FindTensorRelation>, One<cause::FindCast>,
                                      One<cause::FindRandomState>};

// These read more of the store, and only for the roots that they can explain.
constexpr std::array kReadingFinders = {cause::FindReduction, cause::FindBatchOrder};

// What is as small as rounding is a cause only where a setting says so: how it differs says
// nothing.
bool IsAsSmallAsRounding(const Evidence& evidence) {
  const Observation* seen = evidence.a.root;
  return seen != nullptr && evidence.root.distance && IsFloat(seen->layout->dtype) &&
         *evidence.root.distance <= cause::kRoundings * UnitRoundoff(seen->layout->dtype);
}

bool IsLikely(const Cause& cause) { return cause.confidence <= Confidence::kLikely; }

// All that are likely; of others the best.
void KeepBest(Causes& causes) {
  std::stable_sort(causes.begin(), causes.end(),
                   [](const Cause& x, const Cause& y) { return x.confidence < y.confidence; });
  const auto likely =
      static_cast<std::size_t>(std::count_if(causes.begin(), causes.end(), IsLikely));
  causes.resize(std::min({causes.size(), kCausesMax, std::max<std::size_t>(likely, 1)}));
}

}  // namespace

Result<std::vector<Cause>> FindCauses(const CauseQuestion& question, const std::stop_token& stop) {
  if (!question.steps.contains(question.root.step)) return Causes();
  STATCOLLECT_ASSIGN_OR_RETURN(auto evidence, cause::Gather(question, stop));
  STATCOLLECT_ASSIGN_OR_RETURN(evidence.agreeing_part, cause::FindAgreeingPart(evidence));
  Causes causes;
  for (const auto rule : kReadingFinders) {
    if (stop.stop_requested()) return Status(Code::kCancelled, "diff: cancelled");
    STATCOLLECT_ASSIGN_OR_RETURN(auto found, rule(evidence, stop));
    if (found) causes.push_back(*std::move(found));
  }
  // What was read of other ranks says more than what the root's rank shows by the same rule.
  std::set<std::string> known;
  for (const Cause& cause : causes) known.insert(cause.rule);
  const auto add = [&](const auto& rules) {
    for (const auto rule : rules) {
      Causes found = rule(evidence);
      std::erase_if(found, [&](const Cause& cause) { return known.contains(cause.rule); });
      std::ranges::move(found, std::back_inserter(causes));
    }
  };
  add(kFinders);
  KeepBest(causes);
  if ((causes.empty() || !IsLikely(causes.front())) && !IsAsSmallAsRounding(evidence)) {
    add(kDescriptions);
    KeepBest(causes);
    if (!causes.empty()) causes.resize(1);  // of one tensor
  }
  if (auto found = cause::FindSameSamples(evidence)) causes.push_back(*std::move(found));
  return causes;
}

}  // namespace statcollect::query
