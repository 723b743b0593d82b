#include "agent/stats/cuda/plan.h"

#include <algorithm>
#include <string>

#include "agent/stats/cpu/engine.h"
#include "agent/stats/cuda/components.h"
#include "agent/stats/cuda/layout.h"
#include "common/names.h"

namespace statcollect::stats::cuda {
namespace {

static_assert(kSamplesMax <= kPieceComponents<F64>);  // samples come from the first piece

struct Dim {
  std::int64_t size = 0, stride_bytes = 0;
};

// Dimensions of the components, innermost first: sizes of 1 left out, neighbours that lie behind
// each other joined.
int Collapse(const CpuTensor& tensor, std::int64_t component_bytes, std::span<Dim> dims) {
  const auto element_bytes = static_cast<std::int64_t>(DTypeBytes(tensor.dtype));
  int count = 0;
  if (IsComplex(tensor.dtype)) dims[count++] = {2, component_bytes};
  std::int64_t contiguous = 1;
  for (std::size_t i = tensor.shape.size(); i-- > 0;) {
    const std::int64_t size = tensor.shape[i];
    const std::int64_t stride =
        (tensor.strides.empty() ? contiguous : tensor.strides[i]) * element_bytes;
    contiguous *= size;
    if (size == 1) continue;
    if (count > 0 && stride == dims[count - 1].stride_bytes * dims[count - 1].size) {
      dims[count - 1].size *= size;
    } else {
      dims[count++] = {size, stride};
    }
  }
  return count;
}

}  // namespace

Status MakeTask(const CpuTensor& tensor, Task* task) {
  const auto component_bytes =
      static_cast<std::int64_t>(DTypeBytes(tensor.dtype)) / (IsComplex(tensor.dtype) ? 2 : 1);
  task->data = static_cast<const unsigned char*>(tensor.data);
  task->components = ComponentCount(tensor);
  task->pieces =
      DivideUp(task->components, kPieceBytes / static_cast<std::uint64_t>(component_bytes));
  const std::uint64_t unit_pieces = UnitPieces(task->pieces);
  task->unit_pieces = static_cast<std::uint32_t>(unit_pieces);
  task->units =
      std::max<std::uint32_t>(1, static_cast<std::uint32_t>(DivideUp(task->pieces, unit_pieces)));
  task->dims = 0;
  if (task->components == 0) return Status::Ok();

  Dim dims[kDimsMax + 1];
  const int count = Collapse(tensor, component_bytes, dims);
  if (count == 0 || (count == 1 && dims[0].stride_bytes == component_bytes)) return Status::Ok();
  if (count > kTaskDims) {
    return {Code::kUnimplemented, "observe CUDA tensor: its strides do not join below " +
                                      std::to_string(count) + " dimensions; expected at most " +
                                      std::to_string(kTaskDims) + "; observe a contiguous copy"};
  }
  task->dims = count;
  for (int d = 0; d < count; ++d) {
    task->sizes[d] = dims[count - 1 - d].size;
    task->stride_bytes[d] = dims[count - 1 - d].stride_bytes;
  }
  return Status::Ok();
}

TensorStats FinishRecord(const Totals& totals, std::span<const double> sums, std::uint64_t numel,
                         std::span<double> sketch) noexcept {
  Partial partial;
  static_cast<Totals&>(partial) = totals;
  partial.moments.squares = Squares(totals.moments);
  std::copy_n(sums.begin(), std::min(sums.size(), sketch.size()), partial.sketch);
  return Finished(partial, numel, sketch);
}

}  // namespace statcollect::stats::cuda
