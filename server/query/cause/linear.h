// Linear relations between tensors, told from their sketches and statistics: a sketch of a sum is the sum of
// the sketches.
#ifndef STATCOLLECT_SERVER_QUERY_CAUSE_LINEAR_H_
#define STATCOLLECT_SERVER_QUERY_CAUSE_LINEAR_H_

#include <optional>
#include <vector>

#include "server/query/run_view.h"

namespace statcollect::query::cause {

// y = factor * x, but for `residual`: the larger of what remains of the sketch and of the statistics,
// relative to y.
struct Fit {
  double factor = 1;
  double residual = 0;
  bool from_sketch = false;  // else from statistics alone, which see no permutation
  // Whether the factor explains the difference from x: it is not 1, and what remains is small beside it.
  bool Explains() const;
};

// Nothing if it cannot be told: other numbers of elements, zeros, infinities.
std::optional<Fit> FitFactor(const Observation& x, const Observation& y);

// Whether both sketches can be added and subtracted.
bool HaveSketches(const Observation& x, const Observation& y);

using Sketch = std::vector<double>;
Sketch SketchOf(const Observation& x);
Sketch Minus(const Sketch& x, const Sketch& y);
double Norm(const Sketch& x);
// <x, y> / <x, x>; nothing if x is 0.
std::optional<double> FactorBetween(const Sketch& x, const Sketch& y);

// |x - y| <= relative * max(|x|, |y|)
bool Near(double x, double y, double relative);

}  // namespace statcollect::query::cause

#endif  // STATCOLLECT_SERVER_QUERY_CAUSE_LINEAR_H_
