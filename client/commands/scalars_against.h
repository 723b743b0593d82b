// The scalars of two runs side by side.
#ifndef STATCOLLECT_CLIENT_COMMANDS_SCALARS_AGAINST_H_
#define STATCOLLECT_CLIENT_COMMANDS_SCALARS_AGAINST_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "statcollect/v1/query.pb.h"

namespace statcollect::client {

// The values of both runs; absent if a run does not have it.
struct ScalarPair {
  std::string name;
  std::uint32_t rank = 0;
  std::uint64_t step = 0;
  std::uint32_t micro_batch = 0;
  std::optional<double> a, b;

  bool both() const { return a && b; }
  // Compares values; two NaN do not differ. Precondition: both().
  bool differs() const;
};

// All values of one name and rank.
struct ScalarAgreement {
  std::string name;
  std::uint32_t rank = 0;
  std::uint64_t compared = 0, differ = 0, only_a = 0, only_b = 0;
  std::optional<ScalarPair> first;  // the first pair that differs
};

struct ScalarComparison {
  std::vector<ScalarPair> pairs;  // by name, rank, step and micro-batch; repeated values in order
  std::vector<ScalarAgreement> series;
  bool same() const;  // at least one value is in both runs, and none of these differs
};

ScalarComparison CompareScalars(const v1::ListScalarsResponse& a, const v1::ListScalarsResponse& b);

}  // namespace statcollect::client

#endif  // STATCOLLECT_CLIENT_COMMANDS_SCALARS_AGAINST_H_
