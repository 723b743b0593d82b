// Finds pairs of names of two runs by what their tensors hold, for runs whose names share nothing.
#ifndef STATCOLLECT_SERVER_QUERY_COMPARE_PROPOSE_MAP_H_
#define STATCOLLECT_SERVER_QUERY_COMPARE_PROPOSE_MAP_H_

#include <cstdint>
#include <stop_token>
#include <string>
#include <vector>

#include "common/status.h"
#include "server/query/reports.h"
#include "server/query/run_view.h"

namespace statcollect::query {

struct ProposeMapRequest {
  std::string run_a, run_b;
};

struct ProposedName {
  std::string a, b;
  double confidence = 0;  // 0..1
  std::string
      method;  // "hash", "distance", "order" (equal tensors, told apart by the order of definition)
  bool ambiguous = false;  // other names are as near; the line is a comment in the map
  std::string reason;
};

struct ProposeMapReport {
  std::string run_a, run_b;
  std::vector<std::uint64_t> steps;         // whose records were compared
  std::vector<ProposedName> records;        // in A's order of definition
  std::vector<std::string> only_a, only_b;  // names without a counterpart
  std::vector<std::string> notes;
  std::string map;  // for --map: lines "a -> b  # confidence reason"; ambiguous ones begin with #
};

// Pairs the names that only one of the runs has, using the first two steps that both have, of the
// lowest rank that both have: first by equal bits, then by distance among tensors of equal kind and
// shape. Names with the same bits are told apart by what later records of them hold, then by the
// order of definition between pairs that are certain. Cost: n log n, and at most 256 distances for
// each name. kNotFound: no step in common.
Result<ProposeMapReport> ProposeNames(RunView& a, RunView& b, const std::stop_token& stop);

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_COMPARE_PROPOSE_MAP_H_
