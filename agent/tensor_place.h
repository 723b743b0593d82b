// The placement of a tensor that a caller hands over, as the recorder and the engines take it.
#ifndef STATCOLLECT_AGENT_TENSOR_PLACE_H_
#define STATCOLLECT_AGENT_TENSOR_PLACE_H_

#include <optional>
#include <span>

#include "common/placement.h"
#include "common/status.h"
#include "statagent/tensor_view.h"

namespace statagent {

// Borrows the view's numbers.
class TensorPlace {
 public:
  explicit TensorPlace(const TensorView& tensor)
      : shape_(tensor.shape), on_cuda_(tensor.device == Device::kCuda) {
    if (tensor.placement == nullptr) return;
    const Placement& place = *tensor.placement;
    view_ = {place.global_shape, place.boxes, place.ranges, place.partial, place.piece, place.pieces};
  }

  // What is recorded with the tensor; null if its placement is not known.
  const statcollect::PlacementView* recorded() const { return view_ ? &*view_ : nullptr; }
  // What the engine needs; null if hash and sketch are those of a tensor without a placement.
  const statcollect::PlacementView* computed() const {
    return view_ && !statcollect::IsWhole(*view_) ? &*view_ : nullptr;
  }
  // kUnimplemented: the engine for the tensor's device takes whole tensors only. Called before anything is recorded;
  // once that engine takes computed(), this function goes.
  statcollect::Status CheckDevice() const {
    if (!on_cuda_ || computed() == nullptr) return statcollect::Status::Ok();
    STATCOLLECT_RETURN_IF_ERROR(statcollect::CheckPlacement(shape_, *view_));
    return {
        statcollect::Code::kUnimplemented,
        "place a shard of a logical tensor: it is on a CUDA device, whose kernels take whole tensors only; expected "
        "it on the CPU; use a copy there, or leave its placement out"};
  }

 private:
  const std::span<const std::int64_t> shape_;
  const bool on_cuda_;
  std::optional<statcollect::PlacementView> view_;
};

}  // namespace statagent

#endif  // STATCOLLECT_AGENT_TENSOR_PLACE_H_
