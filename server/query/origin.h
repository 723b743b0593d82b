// Which of a step's divergences are origins and which are only propagated. The rules: docs/divergence.md.
#ifndef STATCOLLECT_SERVER_QUERY_ORIGIN_H_
#define STATCOLLECT_SERVER_QUERY_ORIGIN_H_

#include <cstdint>
#include <string>
#include <vector>

#include "server/query/reports.h"

namespace statcollect::query {

// One compared tensor of the forward pass, in the order of execution.
struct ForwardPoint {
  std::string name;
  Kind kind = Kind::kUnspecified;
  std::uint32_t micro_batch = 0, call = 0;
  bool diverged = false;
};

// What was compared in the forward pass of one rank and step, diverged or not.
struct ForwardTrace {
  std::uint32_t rank = 0;
  std::string root;  // name of the outermost module; empty if unknown
  std::vector<ForwardPoint> points;
};

// Sets `origin` of each divergence of one step, the first step that has any. `rows` are in report order;
// `traces` has an entry a rank.
void MarkOrigins(std::vector<Divergence>& rows, const std::vector<ForwardTrace>& traces);

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_ORIGIN_H_
