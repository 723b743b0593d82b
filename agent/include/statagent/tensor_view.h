// A tensor passed to the agent: borrowed memory with a shape.
#ifndef STATAGENT_TENSOR_VIEW_H_
#define STATAGENT_TENSOR_VIEW_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "statagent/types.h"

namespace statagent {

using statcollect::DType;

enum class Device : std::uint8_t { kCpu = 0, kCuda = 1 };

// The place of a tensor's elements in a logical tensor that several processes hold together. Owns
// nothing.
struct Placement {
  std::span<const std::int64_t> global_shape = {};
  // Either boxes: offset, then size, in each dimension. Several boxes differ in one dimension only,
  // along which they follow each other in the tensor.
  std::span<const std::int64_t> boxes = {};
  // Or ranges of the flattened logical tensor, start and stop of each, which follow each other in
  // the tensor.
  std::span<const std::int64_t> ranges = {};
  // Without either, the tensor is the whole. Ranks with the same place are replicas, unless the
  // tensor is
  bool partial = false;  // a sum that is still to be reduced over these ranks
  // The batch is split over `pieces` data-parallel ranks in an unknown order. The global shape is
  // then that of this piece, the piece-th of them.
  std::uint32_t piece = 0, pieces = 1;
  // 1 + the dimension along which the tensor has a set of entries, in an order that means nothing;
  // 0: none. The logical tensor and the boxes have the size 1 there. Pieces then add up to a larger
  // set.
  std::uint32_t unordered = 0;
};

// Owns nothing: pointer, shape and strides must stay valid during the call that receives the view.
struct TensorView {
  const void* data = nullptr;  // first logical element; may be null only if there are no elements
  DType dtype = DType::kUnspecified;
  std::span<const std::int64_t> shape = {};  // elements per dimension; empty: 0-d, one element
  // In elements, not bytes; any sign, 0 for broadcast. Empty: contiguous row-major.
  std::span<const std::int64_t> strides = {};
  Device device = Device::kCpu;
  int device_index = 0;
  // Null: not known. Compute then takes the tensor as the whole.
  const Placement* placement = nullptr;
};

}  // namespace statagent

#endif  // STATAGENT_TENSOR_VIEW_H_
