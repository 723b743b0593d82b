// The placement of a tensor that a caller hands over, as the recorder and the engines take it.
#ifndef STATCOLLECT_AGENT_TENSOR_PLACE_H_
#define STATCOLLECT_AGENT_TENSOR_PLACE_H_

#include <optional>

#include "common/placement.h"
#include "statagent/tensor_view.h"

namespace statagent {

// Borrows the view's numbers.
class TensorPlace {
 public:
  explicit TensorPlace(const TensorView& tensor) {
    if (tensor.placement == nullptr) return;
    const Placement& place = *tensor.placement;
    view_ = {place.global_shape, place.boxes,  place.ranges,   place.partial,
             place.piece,        place.pieces, place.unordered};
  }

  // What is recorded with the tensor; null if its placement is not known.
  const statcollect::PlacementView* recorded() const { return view_ ? &*view_ : nullptr; }
  // What the engine needs; null if hash and sketch are those of a tensor without a placement.
  const statcollect::PlacementView* computed() const {
    return view_ && !statcollect::IsWhole(*view_) ? &*view_ : nullptr;
  }

 private:
  std::optional<statcollect::PlacementView> view_;
};

}  // namespace statagent

#endif  // STATCOLLECT_AGENT_TENSOR_PLACE_H_
