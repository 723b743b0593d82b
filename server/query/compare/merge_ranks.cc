#include "server/query/compare/merge_ranks.h"

#include <algorithm>
#include <optional>

#include "common/names.h"
#include "common/text.h"
#include "server/query/compare/distance.h"
#include "server/query/compare/replicas.h"

namespace statcollect::query {
namespace {

constexpr int kStepsTried = 8;

bool IsWeight(const Observation& seen) { return seen.def->key.kind == Kind::kWeight; }
bool IsUpdated(const Observation& seen) {
  return IsWeight(seen) && seen.def->key.mode != Mode::kInit;
}
bool IsGradient(const Observation& seen) { return seen.def->key.kind == Kind::kWeightGrad; }

// Elements of two ranks' tensors of one identity; `alone`: of those that only the first rank has.
struct Elements {
  double same = 0, other = 0, alone = 0;
  bool second_has_none = false;
  bool any() const { return same + other > 0; }
  bool MostlySame() const { return same > 0 && same >= other; }
};

template <typename Wanted>
Elements CompareElements(const StepData& first, const StepData& other, const Wanted& wanted) {
  std::map<TensorKey, const Observation*> by_key;
  for (const Observation& seen : other.observations) {
    if (wanted(seen)) by_key.emplace(seen.def->key, &seen);
  }
  Elements elements{.second_has_none = by_key.empty()};
  for (const Observation& seen : first.observations) {
    if (!wanted(seen)) continue;
    const auto found = by_key.find(seen.def->key);
    const auto size = static_cast<double>(seen.stats->numel);
    if (found == by_key.end()) {
      elements.alone += size;
      continue;
    }
    const Comparison comparison =
        Compare(seen, *found->second, {}, /*exact=*/false, /*interval=*/false);
    if (comparison.agreement == Agreement::kIncomparable) continue;
    (comparison.agreement == Agreement::kDiverged ? elements.other : elements.same) += size;
  }
  return elements;
}

// Checks a run's layout against its weights.
class Confirmation {
 public:
  Confirmation(RunView& view, const ReplicaLayout& layout) : view_(view), layout_(layout) {}

  // False if the step has no weights of some rank; then try the next step.
  Result<bool> Look(std::size_t attempt, std::uint64_t step) {
    for (const Ranks& group : layout_.groups) {
      if (group.size() < 2) continue;
      STATCOLLECT_ASSIGN_OR_RETURN(const auto first, view_.Read(attempt, group.front(), step));
      for (auto rank = group.begin() + 1; rank != group.end(); ++rank) {
        STATCOLLECT_ASSIGN_OR_RETURN(const auto other, view_.Read(attempt, *rank, step));
        if (!Judge(first, other, group.front(), *rank, step)) return false;
      }
    }
    return true;
  }

  bool own_gradients() const { return own_gradients_; }
  const std::string& no_replicas() const { return no_replicas_; }

 private:
  bool Judge(const StepData& first, const StepData& other, std::uint32_t rank,
             std::uint32_t other_rank, std::uint64_t step) {
    const Elements weights = CompareElements(first, other, IsWeight);
    if (weights.second_has_none || (!weights.any() && weights.alone == 0)) return false;
    if (weights.alone > weights.same + weights.other || !weights.MostlySame()) {
      no_replicas_ = "most weights of ranks " + std::to_string(rank) + " and " +
                     std::to_string(other_rank) + " of " + view_.run() +
                     " are not the same in step " + std::to_string(step) +
                     ": they are not replicas; if they hold shards or stages of one model, write "
                     "its layout (tp, pp, dp) into the configuration; if they should be equal, "
                     "statctl ranks shows where they differ";
      return true;
    }
    // Replicas that make the same update of gradients of their own reduce them in the optimizer.
    const Elements gradients = CompareElements(first, other, IsGradient);
    const Elements updated = CompareElements(first, other, IsUpdated);
    own_gradients_ = own_gradients_ ||
                     (gradients.other > gradients.same && (updated.MostlySame() || !updated.any()));
    return true;
  }

  RunView& view_;
  const ReplicaLayout& layout_;
  bool own_gradients_ = false;
  std::string no_replicas_;
};

class Merger {
 public:
  Merger(RunView& a, RunView& b, const StepAttempts& steps)
      : a_(a), b_(b), steps_(steps), layout_a_(FindReplicas(a)), layout_b_(FindReplicas(b)) {}

  Result<MergedRanks> Run() && {
    ChooseKinds();
    if (!CheckLayouts()) return std::move(merged_);
    STATCOLLECT_RETURN_IF_ERROR(Confirm(a_, layout_a_, /*of_a=*/true));
    STATCOLLECT_RETURN_IF_ERROR(Confirm(b_, layout_b_, /*of_a=*/false));
    if (merged_.incomparable.empty()) Pair();
    return std::move(merged_);
  }

 private:
  bool& Replicated(Kind kind) { return merged_.replicated[static_cast<std::size_t>(kind)]; }

  void ChooseKinds() {
    Replicated(Kind::kWeight) = !layout_a_.weights_sharded && !layout_b_.weights_sharded;
    Replicated(Kind::kWeightGrad) = !layout_a_.gradients_sharded && !layout_b_.gradients_sharded;
    Replicated(Kind::kOptimizerState) = !layout_a_.state_sharded && !layout_b_.state_sharded;
    for (const auto& [run, layout] : {std::pair(&a_, &layout_a_), std::pair(&b_, &layout_b_)}) {
      for (const std::string& note : layout->notes)
        merged_.notes.push_back(run->run() + ": " + note);
      for (const std::string& note : layout->sharded)
        merged_.notes.push_back(run->run() + ": " + note);
    }
  }

  bool CheckLayouts() {
    std::string& why = merged_.incomparable;
    if (!Replicated(Kind::kWeight)) {
      why =
          "weights are sharded over the ranks: no two ranks of the runs hold the same part; "
          "compare without --merge-ranks, which puts the parts together";
    } else if (layout_a_.experts_differ || layout_b_.experts_differ) {
      why =
          "each rank holds its own experts (expert parallelism): such ranks cannot be merged; "
          "compare without --merge-ranks";
    } else if (layout_a_.places != layout_b_.places) {
      why = a_.run() + " divides its model over " + Parts(layout_a_) + ", " + b_.run() + " over " +
            Parts(layout_b_) +
            ": only runs whose tensor and pipeline parallel sizes are equal can be merged; compare "
            "without --merge-ranks, which puts the parts together";
    }
    return why.empty();
  }
  static std::string Parts(const ReplicaLayout& layout) {
    return std::to_string(layout.places.size()) + (layout.places.size() == 1 ? " part" : " parts");
  }

  Status Confirm(RunView& view, const ReplicaLayout& layout, bool of_a) {
    Confirmation confirmation(view, layout);
    bool confirmed = false;
    int tried = 0;
    for (auto at = steps_.begin(); at != steps_.end() && !confirmed && tried < kStepsTried;
         ++at, ++tried) {
      STATCOLLECT_ASSIGN_OR_RETURN(
          confirmed, confirmation.Look(of_a ? at->second.first : at->second.second, at->first));
    }
    if (!confirmed) {
      merged_.notes.push_back(
          "the first steps of " + view.run() +
          " do not have weights of all ranks, so it was not confirmed that its ranks are replicas");
    }
    if (merged_.incomparable.empty()) merged_.incomparable = confirmation.no_replicas();
    if (!confirmation.own_gradients() || !Replicated(Kind::kWeightGrad)) return Status::Ok();
    Replicated(Kind::kWeightGrad) = false;
    merged_.notes.push_back(
        "gradients of " + view.run() +
        " are each rank's own (they are reduced in the optimizer); they were not compared");
    return Status::Ok();
  }

  void Pair() {
    constexpr std::size_t kGroupsTold = 4;
    std::string told;
    for (std::size_t group = 0; group < layout_a_.groups.size(); ++group) {
      const Ranks &of_a = layout_a_.groups[group], &of_b = layout_b_.groups[group];
      for (std::size_t i = 0; i < std::max(of_a.size(), of_b.size()); ++i)
        merged_.pairs.push_back({of_a[i % of_a.size()], of_b[i % of_b.size()]});
      if (group >= kGroupsTold) continue;
      told += (group > 0 ? "; " : "") + RanksText(of_a) + " of " + a_.run() + " and " +
              RanksText(of_b) + " of " + b_.run();
    }
    if (layout_a_.groups.size() > kGroupsTold) told += "; and so on";
    merged_.notes.push_back("ranks merged: " + told + " are replicas of each other");
    std::sort(merged_.pairs.begin(), merged_.pairs.end(), [](const RankPair& x, const RankPair& y) {
      return std::pair(x.a, x.b) < std::pair(y.a, y.b);
    });
    merged_.notes.push_back(
        "merged ranks: only what replicas have in common was compared; activations, batches and "
        "losses depend on each rank's own data. Gradients and updates agree only if the ranks "
        "divide the same data in each step");
  }

  RunView& a_;
  RunView& b_;
  const StepAttempts& steps_;
  const ReplicaLayout layout_a_, layout_b_;
  MergedRanks merged_;
};

}  // namespace

Result<MergedRanks> MergeRanks(RunView& a, RunView& b, const StepAttempts& steps) {
  return Merger(a, b, steps).Run();
}

}  // namespace statcollect::query
