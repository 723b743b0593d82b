#include "server/alarms/replica_rule.h"

#include <algorithm>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "common/text.h"

namespace statcollect::alarms {
std::vector<ReplicaRule::Told> ReplicaRule::Add(std::uint32_t rank, const StepDigest& digest) {
  std::vector<Told> told;
  const auto at = steps_.try_emplace(digest.step).first;
  Digests& digests = at->second;
  held_ += digests.insert_or_assign(rank, digest).second ? 1 : 0;
  for (std::size_t group = 0; group < layout_.groups.size(); ++group) {
    const query::Ranks& ranks = layout_.groups[group];
    const auto here = [&](std::uint32_t member) { return digests.contains(member); };
    if (ranks.size() > 1 && std::find(ranks.begin(), ranks.end(), rank) != ranks.end() &&
        std::all_of(ranks.begin(), ranks.end(), here))
      Compare(group, digest.step, digests, &told);
  }
  std::size_t wanted = 0;
  for (const query::Ranks& ranks : layout_.groups) wanted += ranks.size();
  if (digests.size() >= wanted) Forget(at);
  while (held_ > kDigestsMax) Forget(steps_.begin());
  return told;
}

void ReplicaRule::Forget(std::map<std::uint64_t, Digests>::iterator step) {
  held_ -= step->second.size();
  steps_.erase(step);
}

void ReplicaRule::Compare(std::size_t group, std::uint64_t step, const Digests& digests,
                          std::vector<Told>* told) {
  std::map<std::uint32_t, HashSum> weights, gradients;
  for (const std::uint32_t rank : layout_.groups[group]) {
    weights[rank] = digests.at(rank).weights;
    gradients[rank] = digests.at(rank).gradients;
  }
  if (layout_.experts_differ) return;  // which weights are the same is not known from a sum
  if (!layout_.gradients_sharded)
    CompareSort(group, step, gradients, "gradients", &gradients_[group], told);
  if (!layout_.weights_sharded)
    CompareSort(group, step, weights, "weights", &weights_[group], told);
}

void ReplicaRule::CompareSort(std::size_t group, std::uint64_t step,
                              const std::map<std::uint32_t, HashSum>& sums, const char* what,
                              Sort* sort, std::vector<Told>* told) {
  const std::uint64_t records = sums.begin()->second.records;
  std::map<std::uint64_t, std::vector<std::uint32_t>> by_sum;
  for (const auto& [rank, sum] : sums) {
    if (sum.records != records || records == 0) return;  // something was lost: nothing is known
    by_sum[sum.sum].push_back(rank);
  }
  const std::string subject = fmt::format("{} of group {}", what, group);
  if (by_sum.size() == 1) {
    sort->agreed = true;
    if (!std::exchange(sort->differs, false)) return;
    told->push_back(
        {sort->told_of,
         {.sort = Finding::Sort::kCleared,
          .rule = AlarmRule::kRankDisagreement,
          .kind = kCleared,
          .step = step,
          .subject = subject,
          .text = fmt::format("rank_disagreement: the {} are equal again at step {}", what, step),
          .fields = {}}});
    return;
  }
  if (!sort->agreed || std::exchange(sort->differs, true)) return;
  // The largest set of ranks that agree outvotes the others; of equal ones, the one with the lowest
  // rank.
  const auto majority =
      std::max_element(by_sum.begin(), by_sum.end(), [](const auto& a, const auto& b) {
        return std::pair(a.second.size(), -static_cast<std::int64_t>(a.second.front())) <
               std::pair(b.second.size(), -static_cast<std::int64_t>(b.second.front()));
      });
  std::vector<std::uint32_t> parted;
  for (const auto& [sum, ranks] : by_sum) {
    if (sum != majority->first) parted.insert(parted.end(), ranks.begin(), ranks.end());
  }
  std::sort(parted.begin(), parted.end());
  sort->told_of = parted.front();
  told->push_back(
      {parted.front(),
       {.rule = AlarmRule::kRankDisagreement,
        .kind = std::string(Name(AlarmRule::kRankDisagreement)),
        .step = step,
        .subject = subject,
        .text = fmt::format("the {} of rank{} {} differ from those of rank{} {} at step {}, and "
                            "were equal before; statctl ranks shows which",
                            what, parted.size() > 1 ? "s" : "", Joined(parted),
                            majority->second.size() > 1 ? "s" : "", Joined(majority->second), step),
        .fields = {
            {"what", what}, {"ranks", Joined(parted)}, {"others", Joined(majority->second)}}}});
}

}  // namespace statcollect::alarms
