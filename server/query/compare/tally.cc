#include "server/query/compare/tally.h"

#include <algorithm>
#include <cmath>

#include "server/query/compare/roundoff.h"

namespace statcollect::query {

bool IsGiven(Stage stage, const Layout& a, const Layout& b) {
  const bool real = IsFloat(a.dtype) && IsFloat(b.dtype);
  return stage == Stage::kWeights || (stage == Stage::kBatch && !real);
}

void GivenPairs::Add(const GivenPairs& other) {
  seen += other.seen;
  differ += other.differ;
  unproven += other.unproven;
}

void Tally::Count(const Comparison& comparison, Stage stage) {
  CountAgreement(comparison, stage, stage == Stage::kWeights || stage == Stage::kBatch);
  if (const auto distance = MeasuredDistance(comparison)) AddDistance(*distance);
}

void Tally::CountAgreement(const Comparison& comparison, Stage stage, bool given) {
  if (comparison.agreement == Agreement::kIncomparable) {
    ++incomparable;
    return;
  }
  const bool same = comparison.agreement == Agreement::kIdentical;
  ++records;
  identical += same ? 1 : 0;
  within_tolerance += comparison.agreement == Agreement::kWithinTolerance ? 1 : 0;
  diverged += comparison.agreement == Agreement::kDiverged ? 1 : 0;
  without_hash += same && comparison.without_hash ? 1 : 0;
  const bool in_size = comparison.agreement == Agreement::kDiverged &&
                       comparison.reason == Reason::kNumeric && !given;
  numeric += in_size ? 1 : 0;
  reshaped +=
      comparison.agreement == Agreement::kDiverged && comparison.reason == Reason::kShape ? 1 : 0;
  by_sketch |= !same && comparison.distance && comparison.distance->kind == DistanceKind::kSketch;
  if (stage != Stage::kWeights && stage != Stage::kBatch) return;
  GivenPairs& pairs = stage == Stage::kWeights ? weights : batches;
  const bool unproven =
      comparison.agreement == Agreement::kWithinTolerance && comparison.without_hash;
  ++pairs.seen;
  pairs.unproven += unproven ? 1 : 0;
  pairs.differ += !same && !unproven ? 1 : 0;
}

// Products instead of logarithms, as long as they neither overflow nor underflow.
void Tally::AddDistances(std::span<const double> all) {
  constexpr double kSmallest = 1e-100, kLargest = 1e100;
  double product = distance_product, largest = distance_max;
  for (const double distance : all) {
    largest = std::max(largest, distance);
    if (!(distance > kSmallest && distance < kLargest)) {
      distance_log_sum += std::log(distance);
      continue;
    }
    product *= distance;
    if (product > kSmallest && product < kLargest) continue;
    distance_log_sum += std::log(product);
    product = 1;
  }
  distances += all.size();
  distance_product = product;
  distance_max = largest;
}

double Tally::DistanceLogSum() const { return distance_log_sum + std::log(distance_product); }

void Tally::Add(const Tally& other) {
  records += other.records;
  identical += other.identical;
  within_tolerance += other.within_tolerance;
  diverged += other.diverged;
  incomparable += other.incomparable;
  without_hash += other.without_hash;
  numeric += other.numeric;
  reshaped += other.reshaped;
  by_sketch |= other.by_sketch;
  weights.Add(other.weights);
  batches.Add(other.batches);
  sketches_differ |= other.sketches_differ;
  definitions_differ |= other.definitions_differ;
  if (!other_dtypes) other_dtypes = other.other_dtypes;
  distances += other.distances;
  distance_log_sum += other.DistanceLogSum();
  distance_max = std::max(distance_max, other.distance_max);
}

}  // namespace statcollect::query
