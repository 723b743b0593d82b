#include "server/query/ranks/differing_replicas.h"

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "common/names.h"
#include "server/query/ranks/ranks.h"

namespace statcollect::query {
namespace {

bool IsOfReplicas(const RankFinding& finding) {
  return finding.reason == RankReason::kWeightsDiffer ||
         finding.reason == RankReason::kStateDiffers ||
         finding.reason == RankReason::kGradientsDiffer;
}

// As a part of a sentence.
std::string Inside(std::string sentence) {
  if (sentence.ends_with('.')) sentence.pop_back();
  if (!sentence.empty())
    sentence.front() =
        static_cast<char>(std::tolower(static_cast<unsigned char>(sentence.front())));
  return sentence;
}

struct Differing {
  RankReason reason = RankReason::kUnspecified;
  Cause cause;
};

// Nothing if they agree.
Result<std::optional<Differing>> DifferingReplicas(RunView& view, std::uint64_t step,
                                                   const std::stop_token& stop) {
  using Found = std::optional<Differing>;
  if (view.AllRanks().size() < 2) return Found();
  const std::uint64_t first = step - std::min<std::uint64_t>(step, 1);
  const RanksRequest request{.run = view.run(),
                             .steps = std::to_string(first) + "-" + std::to_string(step),
                             .ranks = {},
                             .kinds = {Kind::kWeight, Kind::kWeightGrad, Kind::kOptimizerState},
                             .tolerance = {}};
  const auto is_open = [](AttemptId, std::uint32_t) { return false; };
  STATCOLLECT_ASSIGN_OR_RETURN(const auto report, CheckRanks(view, request, is_open, {}, stop));
  const auto found = std::find_if(report.findings.begin(), report.findings.end(), IsOfReplicas);
  if (found == report.findings.end()) return Found();
  const auto others = std::count_if(found + 1, report.findings.end(), IsOfReplicas);
  Cause cause{.rule = "replicas", .text = {}, .confidence = Confidence::kLikely};
  cause.text = "the replicas of " + Printable(view.run()) + " differ at step " +
               std::to_string(found->step) + ": " + Inside(found->text);
  if (others > 0) cause.text += " (and " + std::to_string(others) + " more; see statctl ranks)";
  return Found({.reason = found->reason, .cause = std::move(cause)});
}

}  // namespace

Status AddDifferingReplicas(RunView& a, RunView& b, const std::stop_token& stop, Root& root) {
  const bool said = std::any_of(root.causes.begin(), root.causes.end(), [](const Cause& cause) {
    return cause.rule == "replicas" || cause.rule == "reduction";
  });
  if (said) return Status::Ok();
  STATCOLLECT_ASSIGN_OR_RETURN(auto in_a, DifferingReplicas(a, root.at.step, stop));
  STATCOLLECT_ASSIGN_OR_RETURN(auto in_b, DifferingReplicas(b, root.at.step, stop));
  // Ranks that are no replicas at all differ in both runs.
  if (in_a && in_b && in_a->reason == in_b->reason) return Status::Ok();
  for (auto* const found : {&in_a, &in_b}) {
    if (*found) root.causes.push_back(std::move((*found)->cause));
  }
  return Status::Ok();
}

}  // namespace statcollect::query
