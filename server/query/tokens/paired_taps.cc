#include "server/query/tokens/paired_taps.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "server/query/compare/roundoff.h"
#include "server/query/pairs/twins.h"

namespace statcollect::query {
namespace {

// Without measured rounding: as much as the arithmetic of one module explains, and what it makes of
// the rounding before it.
constexpr double kRoundoffs = 8;
constexpr double kFloat32Least = 1e-5;  // a sum in another order, over a few thousand terms
constexpr double kGrowthOfTap = 8;
// With it: this many times the largest that was measured at the tap, in thousands of rows at most.
constexpr double kMeasuredTimes = 4;

// B's tap of the same name, or of the map's.
const TokenTap* FindInB(const NameMap& names, const TokenTap& tap, const TokenTable& b) {
  std::size_t from = 0;
  while (const auto found = names.Find(tap.name, from)) {
    if (found->a.size() == 1 && found->b.size() == 1) {
      if (const TokenTap* other = b.Find(found->b[0])) {
        names.MarkUsed(*found);
        return other;
      }
    }
    from = found->rule + 1;
  }
  return b.Find(tap.name);
}

}  // namespace

PairedTaps PairTaps(const NameMap& names, const TokenTable& a, const TokenTable& b) {
  PairedTaps paired;
  std::set<const TokenTap*> taken;
  for (const TokenTap& tap : a.taps()) {
    const TokenTap* other = FindInB(names, tap, b);
    if (other == nullptr || !taken.insert(other).second) {
      paired.only_a.push_back(tap.name);
    } else {
      paired.pairs.push_back({.a = &tap, .b = other});
    }
  }
  for (const TokenTap& tap : b.taps()) {
    if (!taken.contains(&tap)) paired.only_b.push_back(tap.name);
  }
  return paired;
}

Result<TapNoise> TapNoise::Measure(RecordReader& store, const TokenTable& run,
                                   std::vector<std::string> repeats, const std::string& steps) {
  TapNoise noise;
  const bool named = !repeats.empty();
  if (!named) {
    STATCOLLECT_ASSIGN_OR_RETURN(const auto twins, Twins::Find(store, run.run()));
    for (const TwinOf& twin : twins) repeats.push_back(twin.run);
  }
  for (const std::string& name : repeats) {
    STATCOLLECT_ASSIGN_OR_RETURN(const auto other, TokenTable::Read(store, name, steps));
    bool used = false;
    for (const TokenTap& tap : run.taps()) {
      const TokenTap* const again = other.Find(tap.name);
      if (again == nullptr) continue;
      for (const TokenPair& pair : PairTokens(tap, *again)) {
        double& largest = noise.largest_.emplace(&tap, 0.0).first->second;
        const double apart = TokenDistance(pair.a->stats, pair.b->stats, tap.columns);
        if (std::isfinite(apart)) largest = std::max(largest, apart);
        used = true;
      }
    }
    if (used) {
      noise.used_.push_back(name);
    } else if (named) {
      noise.useless_.push_back(name);
    }
  }
  return noise;
}

std::optional<double> TapNoise::At(const TokenTap& tap) const {
  const auto found = largest_.find(&tap);
  return found == largest_.end() ? std::nullopt : std::optional(found->second);
}

double FloorOfRounding(DType a, DType b, std::uint32_t columns) {
  const double unit = std::max(UnitRoundoff(a), UnitRoundoff(b));
  if (unit > UnitRoundoff(DType::kF32)) return kRoundoffs * unit;  // its sums are kept in float32
  return std::max(kFloat32Least, kRoundoffs * unit * std::sqrt(static_cast<double>(columns)));
}

double LimitOfRounding(const TapPair& taps, std::optional<double> measured, double before) {
  const double floor = FloorOfRounding(taps.a->dtype, taps.b->dtype, taps.a->columns);
  if (!measured) return std::max(floor, kGrowthOfTap * before);
  return std::max(kMeasuredTimes * *measured, floor / kRoundoffs);
}

}  // namespace statcollect::query
