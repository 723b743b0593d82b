// Compares two recorded calls of a module and names the first operator, or block of operators, that
// makes the difference.
#ifndef STATCOLLECT_SERVER_QUERY_ZOOM_COMPARE_CALLS_H_
#define STATCOLLECT_SERVER_QUERY_ZOOM_COMPARE_CALLS_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "server/query/run_view.h"
#include "server/query/zoom/document.h"

namespace statcollect::query {

enum class ZoomOutcome : std::uint8_t {
  kUnspecified = 0,
  kIdentical = 1,  // every result is equal, bit for bit
  kRounding = 2,   // results differ by as little as other kernels may
  kInputs =
      3,  // the module's inputs or weights differ already, and nothing in it makes that much larger
  kOperator = 4,  // an operator: its inputs agree, its result does not
  kBlock = 5,     // operators that only one run has
};

// An argument that is not the same in both runs.
struct ZoomDifference {
  std::string name, a, b;
};

struct ZoomComparison {
  ZoomOutcome outcome = ZoomOutcome::kIdentical;
  // kOperator, kInputs, kRounding: one each. kBlock: those without a partner.
  std::vector<const ZoomOperator*> a, b;
  std::vector<ZoomDifference> differences;
  std::uint32_t inputs = 0;   // tensors that the operator uses
  bool inputs_equal = false;  // bit for bit
  double input_distance = 0;  // the largest of these tensors
  double distance =
      0;  // of the result, or of what the block hands on; infinite if there is no measure
  bool shape = false;   // the results are of different shapes or dtypes
  bool random = false;  // the generators were in different states
  // kBlock: the lines around it at which both agree; empty: the call's begin or end.
  std::string after_a, after_b, before_a, before_b;
};

// One side. `value`: what is recorded of a tensor; null if nothing is.
struct ZoomSide {
  const ZoomDocument* document = nullptr;
  std::function<const Observation*(const ZoomRef&)> value;
};

ZoomComparison CompareCalls(const ZoomSide& a, const ZoomSide& b);

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_ZOOM_COMPARE_CALLS_H_
