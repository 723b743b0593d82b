#include "server/query/verdict/jumps.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <limits>

namespace statcollect::query {
namespace {

// Thresholds, fitted on one half of the benchmark's families (docs/verdict.md). Logarithms: 0.85 is 2.3
// times.
constexpr double kSupported = 0.85;  // with sisters or a past to compare with
constexpr double kUnsupported = 1.5;
constexpr double kFresh = 2.1;  // nothing before it differs: a kernel's own rounding is larger than u
constexpr double kSistersExplain = 2.2, kSistersExplainUpdates = 1.3, kPastExplains = 4,
                 kFreshSistersExplain = 1;
constexpr std::size_t kSupport = 3, kPastKept = 4, kPastNeeded = 2;
constexpr double kSistersQuantile = 0.8;
constexpr double kUsualSpread = 0.18;  // of a large tensor with 16 sums
constexpr double kSpreadWeight = 2;
constexpr double kNothing = 0.3;  // ratios below it are not worth a look
constexpr double kWeightRoundoffs = 4;

double Quantile(const std::vector<double>& sorted, double share) {
  const double position = share * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<std::size_t>(position);
  const std::size_t above = std::min(below + 1, sorted.size() - 1);
  return sorted[below] + (position - static_cast<double>(below)) * (sorted[above] - sorted[below]);
}

// Without one of its entries.
std::vector<double> Without(const std::vector<double>& sorted, double entry) {
  std::vector<double> others = sorted;
  const auto at = std::lower_bound(others.begin(), others.end(), entry);
  if (at != others.end() && *at == entry) others.erase(at);
  return others;
}

bool IsInput(Stage stage) { return stage == Stage::kWeights || stage == Stage::kBatch; }

}  // namespace

double RatioOf(const Explained& one) {
  if (!(one.observed > 0)) return -std::numeric_limits<double>::infinity();
  if (std::isinf(one.pair->distance)) return std::numeric_limits<double>::infinity();
  return std::log(one.observed / one.expected);
}

const std::string& JumpFinder::Pattern(std::string_view name) const {
  auto [at, added] = patterns_.try_emplace(name);
  if (!added) return at->second;
  std::string& pattern = at->second;
  for (std::size_t i = 0; i < name.size();) {
    const bool number = std::isdigit(static_cast<unsigned char>(name[i])) && (i == 0 || name[i - 1] == '.');
    if (!number) {
      pattern += name[i++];
      continue;
    }
    pattern += '*';
    while (i < name.size() && std::isdigit(static_cast<unsigned char>(name[i]))) ++i;
  }
  return pattern;
}

JumpFinder::Groups JumpFinder::GroupSisters(std::span<const Explained> step) const {
  Groups groups;
  for (const Explained& one : step) {
    if (IsInput(one.stage) || one.stage == Stage::kLoss || !(one.pair->distance > 0)) continue;
    const ActivationKey& key = one.pair->a.def->key;
    Group& group = groups[{key.kind, Pattern(key.name), key.output_path, key.mode}];
    (one.fresh ? group.fresh : group.inherited).push_back(RatioOf(one));
  }
  for (auto& [key, group] : groups) {
    std::sort(group.fresh.begin(), group.fresh.end());
    std::sort(group.inherited.begin(), group.inherited.end());
  }
  return groups;
}

std::optional<Jump> JumpFinder::Judge(const Explained& one, const Groups& groups) const {
  const double ratio = RatioOf(one);
  if (!(one.pair->distance > 0) || ratio <= kNothing || one.noise_driven) return std::nullopt;
  Jump jump{.ratio = ratio};
  double threshold = kUnsupported;
  if (one.stage != Stage::kLoss) {
    const ActivationKey& key = one.pair->a.def->key;
    const Group& group = groups.at({key.kind, Pattern(key.name), key.output_path, key.mode});
    const std::vector<double> sisters = Without(one.fresh ? group.fresh : group.inherited, ratio);
    const auto past = past_.find({key.name, key.kind, key.output_path, key.micro_batch, key.call, key.mode});
    jump.sisters = sisters.size();
    if (!sisters.empty()) {
      const double most = one.fresh                        ? kFreshSistersExplain
                          : one.stage == Stage::kOptimizer ? kSistersExplainUpdates
                                                           : kSistersExplain;
      jump.usual = std::max(jump.usual, std::min(Quantile(sisters, kSistersQuantile), most));
    }
    if (past != past_.end() && past->second.size() >= kPastNeeded) {
      jump.past = past->second.size();
      const double highest = *std::max_element(past->second.begin(), past->second.end());
      jump.usual = std::max(jump.usual, std::min(highest, kPastExplains));
    }
    if (jump.sisters + jump.past >= kSupport) threshold = kSupported;
    threshold += kSpreadWeight * std::max(0.0, one.spread - kUsualSpread);
  }
  if (one.fresh && jump.past == 0) threshold = std::max(threshold, kFresh);
  jump.excess = ratio - jump.usual - threshold;
  return jump.excess > 0 ? std::optional(jump) : std::nullopt;
}

std::vector<Jump> JumpFinder::Find(std::span<const Explained> step) {
  const Groups groups = GroupSisters(step);
  std::vector<Jump> jumps;
  for (std::size_t i = 0; i < step.size(); ++i) {
    const Explained& one = step[i];
    std::optional<Jump> jump;
    if (IsInput(one.stage)) {
      const bool rounded =
          one.stage == Stage::kWeights && one.pair->distance <= kWeightRoundoffs * one.expected;
      if (one.pair->distance > 0 && !rounded)
        jump = Jump{.ratio = std::log(one.pair->distance / one.expected), .excess = kSistersExplain};
    } else {
      jump = Judge(one, groups);
    }
    if (!jump) continue;
    jump->index = i;
    jumps.push_back(*jump);
  }
  for (const Explained& one : step) {
    if (IsInput(one.stage) || one.stage == Stage::kLoss || !(one.pair->distance > 0)) continue;
    const ActivationKey& key = one.pair->a.def->key;
    std::deque<double>& past =
        past_[{key.name, key.kind, key.output_path, key.micro_batch, key.call, key.mode}];
    past.push_back(RatioOf(one));
    if (past.size() > kPastKept) past.pop_front();
  }
  return jumps;
}

}  // namespace statcollect::query
