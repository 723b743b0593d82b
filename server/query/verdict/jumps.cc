#include "server/query/verdict/jumps.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "server/query/compare/roundoff.h"
#include "server/query/compare/step_order.h"
#include "server/query/settings/dotted.h"
#include "server/query/verdict/constants.h"
#include "server/query/verdict/pair_size.h"
#include "server/query/verdict/shape.h"

namespace statcollect::query {
namespace {

double Quantile(const std::vector<double>& sorted, double share) {
  const double position = share * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<std::size_t>(position);
  const std::size_t above = std::min(below + 1, sorted.size() - 1);
  return sorted[below] + (position - static_cast<double>(below)) * (sorted[above] - sorted[below]);
}

// A copy without one of its entries.
std::vector<double> Without(const std::vector<double>& sorted, double entry) {
  std::vector<double> others = sorted;
  const auto at = std::lower_bound(others.begin(), others.end(), entry);
  if (at != others.end() && *at == entry) others.erase(at);
  return others;
}

bool Differs(const Explained& one) { return one.pair->distance > 0; }
bool IsTensor(const Explained& one) { return one.pair->loss == nullptr; }

// An input that differs no more than rounding and the weights do, which it may have been computed
// with. A factor is not rounding.
bool IsRounded(const Explained& one) {
  const TensorPair& pair = *one.pair;
  if (one.stage == Stage::kWeights) return pair.distance <= kInputRoundoffs * one.unit;
  // Batches that were put together from pieces: their statistics were added in another order.
  const bool pieces =
      !pair.a.layout->Trusts(Statistic::kHash) || !pair.b.layout->Trusts(Statistic::kHash);
  if (pieces && pair.distance <= kInputRoundoffs * one.unit) return true;
  const bool real = IsFloat(pair.a.layout->dtype) && IsFloat(pair.b.layout->dtype);
  return real && pair.distance <= kInputRoundoffs * one.expected && !IsFactor(pair);
}

}  // namespace

double RatioOf(const Explained& one) {
  if (!(one.observed > 0)) return -std::numeric_limits<double>::infinity();
  if (std::isinf(one.pair->distance)) return std::numeric_limits<double>::infinity();
  return std::log(one.observed / one.expected);
}

std::string_view JumpFinder::Pattern(std::string_view name) {
  auto [at, added] = patterns_.try_emplace(name);
  if (added) at->second = PatternOf(name);
  return at->second;
}

JumpFinder::Sisterhood JumpFinder::SistersOf(const TensorDef& def) {
  return {def.key.kind, Pattern(def.key.name), def.key.output_path, def.key.mode, def.class_name};
}

JumpFinder::Groups JumpFinder::GroupSisters(std::span<const Explained> step) {
  Groups groups;
  for (const Explained& one : step) {
    if (IsInput(one.stage) || !IsTensor(one)) continue;
    Group& group = groups[SistersOf(*one.pair->a.def)];
    if (!Differs(one)) {
      if (one.fresh) group.identical.push_back(one.pair->a.layout);
    } else if (const double ratio = RatioOf(one); std::isfinite(ratio)) {
      (one.fresh ? group.fresh : group.inherited).push_back(ratio);
    }
  }
  for (auto& [key, group] : groups) {
    std::sort(group.fresh.begin(), group.fresh.end());
    std::sort(group.inherited.begin(), group.inherited.end());
  }
  return groups;
}

// The first difference of all. A kernel that rounds differently does so in every module it computes
// and in every step: where it gave equal bits for sisters of the same shape, or for this tensor
// before, it is not the kernel.
std::optional<Jump> JumpFinder::JudgeFirst(const Explained& one, const Groups& groups) {
  if (one.stage == Stage::kOptimizer || !IsTensor(one) ||
      one.pair->a.stats->numel < guessed::kManyElements)
    return std::nullopt;
  if (!one.fresh) return std::nullopt;  // its weights may differ without a record of it
  const Layout& layout = *one.pair->a.layout;
  const std::vector<const Layout*>& identical = groups.at(SistersOf(*one.pair->a.def)).identical;
  const auto same = static_cast<std::size_t>(std::count_if(
      identical.begin(), identical.end(),
      [&](const Layout* l) { return l->shape == layout.shape && l->dtype == layout.dtype; }));
  const std::size_t past = static_cast<std::size_t>(identical_steps_);
  if (same + past == 0) return std::nullopt;
  const double excess = std::log(one.observed / (kKernelRoundoffs * Unit(*one.pair)));
  if (!(excess > 0)) return std::nullopt;
  return Jump{.kind = JumpKind::kUnchanged,
              .ratio = RatioOf(one),
              .excess = excess,
              .sisters = same,
              .past = past};
}

// A difference of the weights is the same for all samples, so a sum over a batch adds it up where
// the values themselves average out: up to sqrt(n) times more differs than in the terms. It does so
// in many gradients.
JumpFinder::Gradients JumpFinder::GroupGradients(std::span<const Explained> step) {
  Gradients gradients;
  for (const Explained& one : step) {
    if (one.stage != Stage::kGrad || one.fresh || one.cancelled || !Differs(one)) continue;
    if (const double ratio = RatioOf(one); std::isfinite(ratio))
      gradients[LastPart(one.pair->a.def->key.name)].push_back(ratio);
  }
  for (auto& [name, ratios] : gradients) std::sort(ratios.begin(), ratios.end());
  return gradients;
}

std::optional<Jump> JumpFinder::Judge(const Explained& one, const Groups& groups,
                                      const Gradients& gradients) {
  const double ratio = RatioOf(one);
  if (!Differs(one) || !(ratio > guessed::kNothing)) return std::nullopt;
  Jump jump{.ratio = ratio};
  double threshold =
      one.stage == Stage::kGrad ? guessed::kUnsupportedGradient : guessed::kUnsupported;
  if (IsTensor(one)) {
    const TensorKey& key = one.pair->a.def->key;
    const Group& group = groups.at(SistersOf(*one.pair->a.def));
    const std::vector<double> sisters = Without(one.fresh ? group.fresh : group.inherited, ratio);
    jump.sisters = sisters.size();
    if (!sisters.empty()) {
      const double most = one.fresh                        ? guessed::kFreshExplains
                          : one.stage == Stage::kOptimizer ? guessed::kSistersExplainUpdates
                                                           : guessed::kSistersExplain;
      jump.usual = std::max(0.0, std::min(Quantile(sisters, guessed::kSistersQuantile), most));
    }
    const auto past =
        past_.find({key.name, key.kind, key.output_path, key.micro_batch, key.call, key.mode});
    if (past != past_.end() && past->second.size() >= guessed::kPastNeeded) {
      jump.past = past->second.size();
      const double highest = *std::max_element(past->second.begin(), past->second.end());
      const double most = one.fresh     ? guessed::kFreshExplains
                          : one.of_loss ? guessed::kPastOfLossExplains
                                        : guessed::kPastExplains;
      jump.usual = std::max(jump.usual, std::min(highest, most));
    }
    if (jump.sisters + jump.past >= guessed::kSupport) threshold = guessed::kSupported;
    const auto alike = gradients.find(LastPart(key.name));
    if (one.stage == Stage::kGrad && !one.fresh && !one.cancelled && alike != gradients.end()) {
      const std::vector<double> others = Without(alike->second, ratio);
      if (others.size() >= guessed::kSupport)
        jump.usual = std::max(jump.usual, std::min(Quantile(others, guessed::kSistersQuantile),
                                                   guessed::kSistersExplain));
    }
  }
  // Nothing shows how much a loss enlarges differences until it did so in earlier steps.
  if (one.fresh || (one.of_loss && jump.past == 0))
    threshold = std::max(threshold, guessed::kFresh);
  threshold += guessed::kSpreadWeight * std::max(0.0, one.spread - guessed::kUsualSpread);
  jump.excess = ratio - jump.usual - threshold;
  return jump.excess > 0 ? std::optional(jump) : std::nullopt;
}

void JumpFinder::Remember(std::span<const Explained> step) {
  for (const Explained& one : step) {
    any_difference_ = any_difference_ || Differs(one);
    if (IsInput(one.stage) || !IsTensor(one) || !Differs(one)) continue;
    const double ratio = RatioOf(one);
    if (!std::isfinite(ratio)) continue;
    const TensorKey& key = one.pair->a.def->key;
    std::deque<double>& past =
        past_[{key.name, key.kind, key.output_path, key.micro_batch, key.call, key.mode}];
    past.push_back(ratio);
    if (past.size() > guessed::kPastKept) past.pop_front();
  }
}

std::vector<Jump> JumpFinder::Find(std::span<const Explained> step) {
  const Groups groups = GroupSisters(step);
  const Gradients gradients = GroupGradients(step);
  std::vector<Jump> jumps;
  const auto first = std::find_if(step.begin(), step.end(), Differs);
  for (std::size_t i = 0; i < step.size(); ++i) {
    const Explained& one = step[i];
    if (!Differs(one)) continue;
    std::optional<Jump> jump;
    if (IsInput(one.stage)) {
      if (!IsRounded(one))
        jump = Jump{.kind = JumpKind::kInput, .ratio = RatioOf(one), .excess = kExactExcess};
    } else {
      if (!any_difference_ && &one == &*first) jump = JudgeFirst(one, groups);
      if (!jump) jump = Judge(one, groups, gradients);
    }
    if (!jump) continue;
    jump->index = i;
    jumps.push_back(*jump);
  }
  Remember(step);
  return jumps;
}

std::size_t ChooseJump(std::span<const Explained> step, std::span<const Jump> jumps) {
  const auto observed = [&](const Jump& jump) { return step[jump.index].observed; };
  const auto is_gradient = [&](const Jump& jump) { return step[jump.index].stage == Stage::kGrad; };
  if (!is_gradient(jumps[0])) return 0;
  std::size_t chosen = 0;
  for (std::size_t i = 1; i < jumps.size(); ++i) {
    const bool larger = is_gradient(jumps[i]) && observed(jumps[i]) > observed(jumps[chosen]);
    if (larger && observed(jumps[i]) >= guessed::kLarger * observed(jumps[0])) chosen = i;
  }
  return chosen;
}

}  // namespace statcollect::query
