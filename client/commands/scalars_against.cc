#include "client/commands/scalars_against.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>
#include <utility>

namespace statcollect::client {
namespace {

// The last: which one of several with the same rest.
using PointKey = std::tuple<std::string, std::uint32_t, std::uint64_t, std::uint32_t, std::size_t>;

template <typename Member>
void Collect(const v1::ListScalarsResponse& from, Member member,
             std::map<PointKey, ScalarPair>& pairs) {
  std::map<PointKey, std::size_t> seen;
  for (const v1::ScalarRow& row : from.records()) {
    PointKey place{row.name(), row.rank(), row.step(), row.micro_batch(), 0};
    std::get<4>(place) = seen[place]++;
    ScalarPair& pair = pairs[place];
    pair.name = row.name();
    pair.rank = row.rank();
    pair.step = row.step();
    pair.micro_batch = row.micro_batch();
    pair.*member = row.value();
  }
}

}  // namespace

bool ScalarPair::differs() const { return !(*a == *b || (std::isnan(*a) && std::isnan(*b))); }

bool ScalarComparison::same() const {
  const auto compared = [](const ScalarAgreement& one) { return one.compared > 0; };
  return std::any_of(series.begin(), series.end(), compared) &&
         std::all_of(series.begin(), series.end(),
                     [](const ScalarAgreement& one) { return one.differ == 0; });
}

ScalarComparison CompareScalars(const v1::ListScalarsResponse& a,
                                const v1::ListScalarsResponse& b) {
  std::map<PointKey, ScalarPair> pairs;
  Collect(a, &ScalarPair::a, pairs);
  Collect(b, &ScalarPair::b, pairs);
  ScalarComparison comparison;
  for (auto& [place, pair] : pairs) {
    auto& series = comparison.series;
    if (series.empty() || series.back().name != pair.name || series.back().rank != pair.rank)
      series.push_back({.name = pair.name, .rank = pair.rank, .first = {}});
    ScalarAgreement& at = series.back();
    if (!pair.both()) {
      ++(pair.a ? at.only_a : at.only_b);
    } else {
      ++at.compared;
      at.differ += pair.differs() ? 1 : 0;
      if (pair.differs() && !at.first) at.first = pair;
    }
    comparison.pairs.push_back(std::move(pair));
  }
  return comparison;
}

}  // namespace statcollect::client
