#include "server/query/verdict/running_means.h"

#include <algorithm>
#include <cmath>

#include "server/query/settings/dotted.h"

namespace statcollect::query {
namespace {

bool IsBuffer(const TensorPair& pair, std::string_view name) {
  return pair.loss == nullptr && pair.a.def->key.kind == Kind::kBuffer &&
         LastPart(pair.a.def->key.name) == name;
}

}  // namespace

void RunningMeans::Step(std::span<const TensorPair> pairs) {
  deviations_.clear();
  for (const TensorPair& pair : pairs) {
    // Variances are not negative, so their sum is their l1.
    if (IsBuffer(pair, "running_var") && pair.a.layout->Trusts(Statistic::kL1) &&
        pair.a.stats->l1 > 0)
      deviations_[ParentOf(pair.a.def->key.name)] = std::sqrt(pair.a.stats->l1);
  }
}

double RunningMeans::SizeOf(const TensorPair& pair) const {
  const double own = pair.a.stats->l2;
  if (deviations_.empty() || !IsBuffer(pair, "running_mean")) return own;
  const auto deviation = deviations_.find(ParentOf(pair.a.def->key.name));
  return deviation == deviations_.end() ? own : std::max(own, deviation->second);
}

}  // namespace statcollect::query
