// Finds linear relations between tensors from their sketches and statistics: the sketch of a sum is
// the sum of the sketches.
#ifndef STATCOLLECT_SERVER_QUERY_CAUSE_LINEAR_H_
#define STATCOLLECT_SERVER_QUERY_CAUSE_LINEAR_H_

#include <optional>
#include <vector>

#include "server/query/run_view.h"

namespace statcollect::query::cause {

// y = factor * x up to `residual`: the larger residual of the sketch and the statistics, relative
// to y.
struct Fit {
  double factor = 1;
  double residual = 0;
  bool from_sketch = false;  // otherwise from statistics alone, which do not notice permutations
  // Whether the factor explains the difference from x: it is not 1, and the residual is small
  // compared with it, and at most what rounding leaves.
  bool Explains(double rounding = 1) const;
};

// Empty if it is undefined: different numbers of elements, zeros, infinities.
std::optional<Fit> FitFactor(const Observation& x, const Observation& y);

// Whether both sketches can be added and subtracted.
bool HaveSketches(const Observation& x, const Observation& y);

using Sketch = std::vector<double>;
Sketch SketchOf(const Observation& x);
Sketch Minus(const Sketch& x, const Sketch& y);
Sketch Times(Sketch x, double factor);
double Dot(const Sketch& x, const Sketch& y);
double Norm(const Sketch& x);
// <x, y> / <x, x>; empty if x is 0.
std::optional<double> FactorBetween(const Sketch& x, const Sketch& y);

// |x - y| <= relative * max(|x|, |y|)
bool Near(double x, double y, double relative);
// A number with two significant digits at most, as people choose a largest norm.
bool IsRound(double value);

}  // namespace statcollect::query::cause

#endif  // STATCOLLECT_SERVER_QUERY_CAUSE_LINEAR_H_
