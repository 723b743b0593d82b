#include "server/query/ranks/differing_replicas.h"

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "common/names.h"
#include "common/step_set.h"
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

// Where the replicas of a run part.
struct Parting {
  RankFinding finding;
  std::size_t others = 0;  // findings of the same two steps
};
using FoundParting = std::optional<Parting>;

// Looks for the first step in which the replicas of one run differ.
class PartingSearch {
 public:
  PartingSearch(RunView& view, const DiffRequest& request, const std::stop_token& stop)
      : view_(view), request_(request), stop_(stop) {}

  // In the steps from `first` to `last`; of earlier ones at most the one before is read.
  Result<FoundParting> Find(std::uint64_t first, std::uint64_t last) {
    const std::vector<Kind> kinds = Kinds();
    if (view_.AllRanks().size() < 2 || kinds.empty()) return FoundParting();
    ranks_.run = view_.run();
    ranks_.ranks = request_.ranks;
    ranks_.kinds = kinds;
    ranks_.tolerance = request_.tolerance;
    STATCOLLECT_ASSIGN_OR_RETURN(const auto all, StepSet::Parse("0-" + std::to_string(last)));
    STATCOLLECT_ASSIGN_OR_RETURN(const auto steps, view_.Steps(all));
    for (const auto& [step, attempt] : steps) steps_.push_back(step);
    if (steps_.empty() || steps_.back() < first) return FoundParting();
    STATCOLLECT_ASSIGN_OR_RETURN(auto found, Near(steps_.size() - 1));
    const bool earlier = found && steps_.size() > 2 && found->finding.step < steps_.back();
    if (!earlier) return found;
    STATCOLLECT_ASSIGN_OR_RETURN(const std::size_t place, FirstApart(first));
    return Near(place);
  }

 private:
  std::vector<Kind> Kinds() const {
    std::vector<Kind> kinds = {Kind::kWeight, Kind::kWeightGrad, Kind::kOptimizerState};
    if (request_.kinds.empty()) return kinds;
    std::erase_if(kinds, [&](Kind kind) {
      return std::find(request_.kinds.begin(), request_.kinds.end(), kind) == request_.kinds.end();
    });
    return kinds;
  }

  // In the step at this place and the one before it, which shows what was the same.
  Result<FoundParting> Near(std::size_t place) {
    return Check(steps_[place == 0 ? 0 : place - 1], steps_[place]);
  }

  Result<FoundParting> Check(std::uint64_t first, std::uint64_t last) {
    ranks_.steps = std::to_string(first) + "-" + std::to_string(last);
    const auto is_open = [](AttemptId, std::uint32_t) { return false; };
    STATCOLLECT_ASSIGN_OR_RETURN(const auto report, CheckRanks(view_, ranks_, is_open, {}, stop_));
    const auto begin = report.findings.begin(), end = report.findings.end();
    const auto found = std::find_if(begin, end, IsOfReplicas);
    if (found == end) return FoundParting();
    const auto others = std::count_if(found + 1, end, IsOfReplicas);
    return FoundParting(Parting{.finding = *found, .others = static_cast<std::size_t>(others)});
  }

  // What has parted stays apart, so the first such step from `first` on is found by bisection.
  Result<std::size_t> FirstApart(std::uint64_t first) {
    const auto begin = std::lower_bound(steps_.begin(), steps_.end(), first);
    auto low = static_cast<std::size_t>(begin - steps_.begin());
    std::size_t high = steps_.size() - 1;
    while (low < high) {
      const std::size_t middle = low + (high - low) / 2;
      STATCOLLECT_ASSIGN_OR_RETURN(const auto found, Check(steps_[middle], steps_[middle]));
      (found ? high : low) = found ? middle : middle + 1;
    }
    return low;
  }

  RunView& view_;
  const DiffRequest& request_;
  const std::stop_token& stop_;
  RanksRequest ranks_;
  std::vector<std::uint64_t> steps_;
};

Cause PartingCause(const RunView& run, const Parting& parting) {
  Cause cause{.rule = "replicas", .text = {}, .confidence = Confidence::kLikely};
  cause.text = "the replicas of " + Printable(run.run()) + " differ at step " +
               std::to_string(parting.finding.step) + ": " + Inside(parting.finding.text);
  if (parting.others > 0)
    cause.text += " (and " + std::to_string(parting.others) + " more; see statctl ranks)";
  return cause;
}

Divergence PartingRow(const Parting& parting, bool in_a) {
  const RankFinding& finding = parting.finding;
  Divergence row;
  row.step = finding.step;
  row.micro_batch = finding.micro_batch;
  row.rank = finding.ranks.front();
  row.stage = finding.stage;
  row.kind = finding.kind;
  row.activation = finding.activation;
  row.output_path = finding.output_path;
  row.call = finding.call;
  row.class_name = finding.class_name;
  row.mode = finding.mode;
  row.segment = finding.segment;
  row.reason = Reason::kNumeric;
  row.distance = finding.distance;
  row.distance_kind = finding.distance_kind;
  row.origin = true;
  row.logical = true;
  (in_a ? row.ranks_a : row.ranks_b) = finding.ranks;
  return row;
}

// It leads to everything that the diff has found.
void MakePartingRoot(Divergence row, Cause cause, DiffReport& report) {
  Root root{.at = std::move(row), .confidence = Confidence::kCertain};
  root.because.emplace_back("ranks that held the same, or are meant to, hold different values");
  root.causes.push_back(std::move(cause));
  root.above_tolerance = root.at.step;
  if (!report.first) {
    report.first = root.at;
    report.diverged.insert(report.diverged.begin(), root.at);
    ++report.compared.records;
    ++report.compared.diverged;
  }
  report.origins.insert(report.origins.begin(), root.at);
  report.origins.resize(std::min<std::size_t>(report.origins.size(), kTopDefault));
  report.verdict = Verdict::kDiverged;
  report.explained_by_rounding = false;
  report.root = std::move(root);
}

// Whether one of the root's causes is about what its ranks hold.
bool SaysRanksDiffer(const Root& root, const Parting& parting) {
  const bool gradients = parting.finding.reason == RankReason::kGradientsDiffer;
  return std::any_of(root.causes.begin(), root.causes.end(), [&](const Cause& cause) {
    return cause.rule == "reduction" || (gradients && cause.rule == "gradient_scale");
  });
}

using PlaceOfRoot = std::tuple<std::uint64_t, std::uint32_t, Stage>;

void TakeParting(const RunView& run, bool in_a, const Parting& parting, DiffReport& report) {
  const RankFinding& found = parting.finding;
  const PlaceOfRoot place(found.step, found.segment, found.stage);
  Cause cause = PartingCause(run, parting);
  const auto is_at = [&](const Divergence& root) {
    return PlaceOfRoot(root.step, root.segment, root.stage);
  };
  if (!report.root || place < is_at(report.root->at)) {
    const bool compared = report.steps && found.step >= report.steps->first;
    if (found.apart && found.replicas && compared) {
      cause.confidence = Confidence::kCertain;
      return MakePartingRoot(PartingRow(parting, in_a), std::move(cause), report);
    }
    if (!report.root) return;
  }
  Root& root = *report.root;
  if (SaysRanksDiffer(root, parting)) return;
  const bool at_root = place == is_at(root.at);
  root.causes.insert(at_root ? root.causes.begin() : root.causes.end(), std::move(cause));
}

}  // namespace

Status CheckReplicas(RunView& a, RunView& b, const DiffRequest& request,
                     const std::stop_token& stop, DiffReport& report) {
  // Runs of the same bits differ alike, unless only one rank of each was compared.
  const bool alike = report.verdict == Verdict::kIdentical && !request.logical &&
                     report.ranks_b.empty() && report.ranks == a.AllRanks();
  if (!report.steps || report.verdict == Verdict::kIncomparable || alike) return Status::Ok();
  const std::uint64_t last = report.root ? report.root->at.step : report.steps->last;
  STATCOLLECT_ASSIGN_OR_RETURN(const auto in_a,
                               PartingSearch(a, request, stop).Find(report.steps->first, last));
  STATCOLLECT_ASSIGN_OR_RETURN(const auto in_b,
                               PartingSearch(b, request, stop).Find(report.steps->first, last));
  // Ranks that are no replicas at all differ in both runs.
  if (in_a && in_b && in_a->finding.reason == in_b->finding.reason) return Status::Ok();
  if (in_b) TakeParting(b, /*in_a=*/false, *in_b, report);
  if (in_a) TakeParting(a, /*in_a=*/true, *in_a, report);
  return Status::Ok();
}

}  // namespace statcollect::query
