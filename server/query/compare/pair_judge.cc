#include "server/query/compare/pair_judge.h"

#include <utility>

namespace statcollect::query {

Comparison PairJudge::operator()(const Observation& a, const Observation& b, std::uint32_t id_a,
                                 bool interval) {
  Comparison comparison = Compare(a, b, context_.tolerance, context_.exact, interval);
  const bool by_size =
      comparison.reason == Reason::kNumeric || comparison.reason == Reason::kNonfinite;
  if (context_.noise != nullptr && by_size && comparison.agreement == Agreement::kDiverged &&
      !context_.exact)
    WeighByNoise(NoiseOf(id_a), context_.noise_allows, comparison);
  return comparison;
}

double PairJudge::NoiseOf(std::uint32_t id_a) {
  if (!noise_) {
    auto noise = context_.noise->At(at_.attempt_a, at_.ranks.a, at_.step);
    status_ = noise.status();
    noise_ = noise.ok() ? *std::move(noise) : std::vector<double>();
  }
  return id_a < noise_->size() ? (*noise_)[id_a] : 0;
}

void FillPair(Divergence& row, const Comparison& comparison, const Observation& a,
              const Observation& b) {
  SetComparison(row, comparison);
  row.a = MakeSide(a);
  row.b = MakeSide(b);
  if (b.def != nullptr && b.def->key.name != row.activation) row.activation_b = b.def->key.name;
}

}  // namespace statcollect::query
