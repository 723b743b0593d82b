// What a diff counts of the pairs that it compared.
#ifndef STATCOLLECT_SERVER_QUERY_COMPARE_TALLY_H_
#define STATCOLLECT_SERVER_QUERY_COMPARE_TALLY_H_

#include <cstdint>
#include <optional>
#include <span>
#include <utility>

#include "common/records.h"
#include "server/query/compare/distance.h"
#include "server/query/reports.h"

namespace statcollect::query {

// Whether it was given, not computed by weights: weights as loaded, and batches, except those of
// real numbers (a rollout's, for example).
bool IsGiven(Stage stage, const Layout& a, const Layout& b);

// Pairs that were given: weights as loaded, or batches.
struct GivenPairs {
  std::uint64_t seen = 0;
  std::uint64_t differ = 0;  // of these, in any bit
  std::uint64_t unproven =
      0;  // of these, within tolerance, and no hashes show whether they are equal
  void Add(const GivenPairs& other);
};

// Counts of compared records. Invariant: records == identical + within_tolerance + diverged.
struct Tally {
  std::uint64_t records = 0, identical = 0, within_tolerance = 0, diverged = 0;
  std::uint64_t incomparable = 0;  // pairs without a statistic in common; not counted in records
  std::uint64_t without_hash = 0;  // identical ones: equal in what was recorded, without hashes
  std::uint64_t numeric = 0;       // diverged ones: only in the size of values, and not given
  std::uint64_t reshaped = 0;      // diverged ones: of another shape
  bool by_sketch = false;          // a pair of different bits was judged by sketches
  GivenPairs weights, batches;
  bool sketches_differ = false;                         // in width
  bool definitions_differ = false;                      // of hashes and sketches
  std::optional<std::pair<DType, DType>> other_dtypes;  // of the first pair whose dtypes differ
  // Finite distances of records that are not identical.
  std::uint64_t distances = 0;
  double distance_log_sum = 0, distance_max = 0;
  double distance_product = 1;  // of those whose logarithms are not yet in the sum
  void Count(const Comparison& comparison, Stage stage);
  // Counts everything but the distance. `given`: IsGiven.
  void CountAgreement(const Comparison& comparison, Stage stage, bool given);
  void AddDistance(double distance) { AddDistances({&distance, 1}); }
  void AddDistances(std::span<const double> all);  // > 0
  double DistanceLogSum() const;
  void Add(const Tally& other);
};

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_COMPARE_TALLY_H_
