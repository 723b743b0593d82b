// Separates the origins among a step's divergences from propagated ones. The rules are in
// docs/divergence.md.
#ifndef STATCOLLECT_SERVER_QUERY_COMPARE_ORIGIN_H_
#define STATCOLLECT_SERVER_QUERY_COMPARE_ORIGIN_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "common/records.h"
#include "server/query/reports.h"

namespace statcollect::query {

// One compared tensor of a forward pass, in the order of execution.
struct ForwardPoint {
  const TensorKey* key = nullptr;
  bool diverged = false;
};

// Everything that was compared in the forward passes of one rank and step (training and
// evaluation), diverged or not. Keys are borrowed.
struct ForwardTrace {
  std::uint32_t rank = 0;
  std::string root;  // name of the outermost module; empty if unknown
  std::vector<ForwardPoint> points;
};

// Whether only the structure differs (missing, different order). This does not explain values, with
// two exceptions: a training pass that only one run made, and the update of a weight whose gradient
// only one run has.
bool IsStructural(const Divergence& row);

// Sets `origin` of each divergence of one step, the first step whose values differ. `rows` are in
// report order; `traces` has one entry per rank. Structural rows are left unchanged. Cost: linear
// in points, times the depth of the module tree.
void MarkOrigins(std::span<Divergence* const> rows, const std::vector<ForwardTrace>& traces);

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_COMPARE_ORIGIN_H_
