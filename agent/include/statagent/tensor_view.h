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

// Where a tensor's elements lie in a logical tensor that several processes hold together. Does not own anything.
struct Placement {
  std::span<const std::int64_t> global_shape = {};
  // Either boxes: offset, then size, in each dimension; several boxes are equal but in one dimension, along which
  // they follow each other in the tensor.
  std::span<const std::int64_t> boxes = {};
  // Or ranges of the flattened logical tensor, start and stop of each, which follow each other in the tensor.
  std::span<const std::int64_t> ranges = {};
  // Without either, the tensor is the whole. Of ranks that hold the same place, all are replicas, unless it is
  bool partial = false;  // a sum that is still to be reduced over them
  // The batch is cut over `pieces` data-parallel ranks in an order that is not known. The global shape is then
  // that of this piece, the piece-th of them.
  std::uint32_t piece = 0, pieces = 1;
};

// Does not own anything: pointer, shape and strides must stay valid during the call that takes the view.
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
