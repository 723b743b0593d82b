// The scalars of two runs side by side.
#ifndef STATCOLLECT_CLIENT_COMMANDS_SCALARS_AGAINST_H_
#define STATCOLLECT_CLIENT_COMMANDS_SCALARS_AGAINST_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "statcollect/v1/query.pb.h"

namespace statcollect::client {

// A value of each run; absent: the run does not have it.
struct ScalarPair {
  std::string name;
  std::uint32_t rank = 0;
  std::uint64_t step = 0;
  std::uint32_t micro_batch = 0;
  std::optional<double> a, b;

  bool both() const { return a && b; }
  // In value; two NaN do not differ. Precondition: both().
  bool differs() const;
};

// Values of one name and rank.
struct ScalarAgreement {
  std::string name;
  std::uint32_t rank = 0;
  std::uint64_t compared = 0, differ = 0, only_a = 0, only_b = 0;
  std::optional<ScalarPair> first;  // that differs
};

struct ScalarComparison {
  std::vector<ScalarPair> pairs;  // by name, rank, step and micro-batch; several of those: in order
  std::vector<ScalarAgreement> series;
  bool same() const;  // no value that both have differs, and there is one
};

ScalarComparison CompareScalars(const v1::ListScalarsResponse& a, const v1::ListScalarsResponse& b);

}  // namespace statcollect::client

#endif  // STATCOLLECT_CLIENT_COMMANDS_SCALARS_AGAINST_H_
