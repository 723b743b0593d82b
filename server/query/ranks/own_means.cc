#include "server/query/ranks/own_means.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "common/names.h"
#include "common/step_set.h"
#include "server/query/number_text.h"

namespace statcollect::query {
namespace {

// What each element of a tensor is, on one rank.
struct RankConstant {
  TensorKey of;
  double value = 0;
};

// The gradient next to the loss, if it is a constant other than 0. In a mean over the samples of
// several ranks, those of each rank count as many times less.
std::optional<RankConstant> ConstantNextToLoss(const StepData& step, std::uint32_t micro_batch) {
  for (const Observation& seen : step.observations) {
    const TensorKey& key = seen.def->key;
    if (key.kind != Kind::kGradOutput || key.mode != Mode::kTrain || key.micro_batch != micro_batch)
      continue;
    const TensorStats& stats = *seen.stats;
    const bool constant = seen.layout->Trusts(Statistic::kMin) &&
                          seen.layout->Trusts(Statistic::kMax) && stats.has_finite &&
                          stats.min == stats.max && stats.min != 0 && stats.numel > 1;
    if (!constant) return std::nullopt;
    const std::uint32_t pieces = seen.layout->placement ? seen.layout->placement->pieces : 1;
    return RankConstant{.of = key, .value = stats.min / std::max(pieces, 1u)};
  }
  return std::nullopt;
}

using RankConstants = std::map<std::uint32_t, RankConstant>;

// Of all ranks that have recorded the step; empty if one has another gradient next to its loss.
Result<RankConstants> ConstantsOf(RunView& run, const Divergence& root,
                                  const std::stop_token& stop) {
  STATCOLLECT_ASSIGN_OR_RETURN(const auto wanted, StepSet::Parse(std::to_string(root.step)));
  STATCOLLECT_ASSIGN_OR_RETURN(const auto steps, run.Steps(wanted));
  RankConstants constants;
  for (const auto& [step, attempt] : steps) {
    for (const auto& [rank, meta] : run.ranks(attempt)) {
      if (stop.stop_requested()) return Status(Code::kCancelled, "diff: cancelled");
      STATCOLLECT_ASSIGN_OR_RETURN(const auto data, run.Read(attempt, rank, step));
      if (data.observations.empty()) continue;
      auto constant = ConstantNextToLoss(data, root.micro_batch);
      if (!constant || (!constants.empty() && constants.begin()->second.of != constant->of))
        return RankConstants();
      constants.emplace(rank, *std::move(constant));
    }
  }
  return constants;
}

bool AreTheSame(const RankConstants& constants) {
  constexpr double kApart = 0.01;
  const auto [least, most] = std::minmax_element(
      constants.begin(), constants.end(),
      [](const auto& x, const auto& y) { return x.second.value < y.second.value; });
  return most->second.value - least->second.value <=
         kApart * std::max(std::abs(most->second.value), std::abs(least->second.value));
}

std::string OwnMeansText(const RankConstants& in_b, double in_a, const DiffReport& report) {
  const TensorKey& of = in_b.begin()->second.of;
  std::map<std::uint32_t, double> factors;
  for (const auto& [rank, constant] : in_b) factors[rank] = constant.value / in_a;
  return std::string(Name(of.kind)) + " " + Printable(of.name) + " in " + Printable(report.run_b) +
         " is " + FactorsText(factors, Printable(report.run_a)) + " at step " +
         std::to_string(report.root->at.step) +
         ": each rank divides by a number of its own, such as that of its tokens";
}

}  // namespace

Status AddOwnMeans(RunView& a, RunView& b, const std::stop_token& stop, DiffReport& report) {
  Root& root = *report.root;
  const bool said = std::any_of(root.causes.begin(), root.causes.end(),
                                [](const Cause& cause) { return cause.rule == "gradient_scale"; });
  if (said || root.at.stage != Stage::kLoss || b.AllRanks().size() < 2) return Status::Ok();
  STATCOLLECT_ASSIGN_OR_RETURN(const auto in_a, ConstantsOf(a, root.at, stop));
  STATCOLLECT_ASSIGN_OR_RETURN(const auto in_b, ConstantsOf(b, root.at, stop));
  if (in_a.empty() || in_b.size() < 2 || !AreTheSame(in_a) || AreTheSame(in_b)) return Status::Ok();
  const RankConstant& of = in_b.begin()->second;
  root.causes.insert(root.causes.begin(),
                     {.rule = "gradient_scale",
                      .text = OwnMeansText(in_b, in_a.begin()->second.value, report),
                      .confidence = Confidence::kLikely,
                      .key = of.of.name});
  return Status::Ok();
}

}  // namespace statcollect::query
