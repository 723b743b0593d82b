#include "agent/stats/tensor_walk.h"

#include <algorithm>
#include <cstring>

#include "common/names.h"
#include "common/shape.h"

namespace statcollect::stats {
namespace {

template <std::size_t kBytes>
void CopyStrided(const unsigned char* from, std::int64_t stride_bytes, std::int64_t count,
                 unsigned char* to) {
  for (std::int64_t i = 0; i < count; ++i)
    std::memcpy(to + i * kBytes, from + i * stride_bytes, kBytes);
}

void CopyRun(const unsigned char* from, std::int64_t stride, std::size_t element_bytes,
             std::int64_t count, unsigned char* to) {
  const std::int64_t stride_bytes = stride * static_cast<std::int64_t>(element_bytes);
  if (stride == 1) {
    std::memcpy(to, from, static_cast<std::size_t>(count) * element_bytes);
    return;
  }
  switch (element_bytes) {
    case 1:
      return CopyStrided<1>(from, stride_bytes, count, to);
    case 2:
      return CopyStrided<2>(from, stride_bytes, count, to);
    case 4:
      return CopyStrided<4>(from, stride_bytes, count, to);
    case 8:
      return CopyStrided<8>(from, stride_bytes, count, to);
    default:
      return CopyStrided<16>(from, stride_bytes, count, to);
  }
}

}  // namespace

TensorWalk::TensorWalk(const CpuTensor& tensor) noexcept
    : data_(static_cast<const unsigned char*>(tensor.data)),
      element_bytes_(DTypeBytes(tensor.dtype)) {
  size_ = NumelOf(tensor.shape);
  if (size_ != 0) Collapse(tensor);
}

void TensorWalk::Collapse(const CpuTensor& tensor) noexcept {
  // From the innermost outwards, then turned around.
  std::int64_t contiguous_stride = 1;
  for (std::size_t i = tensor.shape.size(); i-- > 0;) {
    const std::int64_t size = tensor.shape[i];
    const std::int64_t stride = tensor.strides.empty() ? contiguous_stride : tensor.strides[i];
    contiguous_stride *= size;
    if (size == 1) continue;
    if (dims_ > 0) {
      Dim& inner = dim_[dims_ - 1];
      if (stride == inner.stride * inner.size) {
        inner.size *= size;
        continue;
      }
    }
    dim_[dims_++] = {size, stride};
  }
  std::reverse(dim_.begin(), dim_.begin() + dims_);
  std::fill(index_.begin(), index_.begin() + dims_, 0);
}

void TensorWalk::Seek(std::uint64_t element) noexcept {
  offset_ = 0;
  for (int d = dims_ - 1; d >= 0; --d) {
    const auto size = static_cast<std::uint64_t>(dim_[d].size);
    index_[d] = static_cast<std::int64_t>(element % size);
    element /= size;
    offset_ += index_[d] * dim_[d].stride;
  }
}

// `steps` along the innermost dimension, not beyond its end; carries into the outer ones.
void TensorWalk::Advance(std::int64_t steps) noexcept {
  int d = dims_ - 1;
  index_[d] += steps;
  offset_ += steps * dim_[d].stride;
  while (d > 0 && index_[d] == dim_[d].size) {
    offset_ -= dim_[d].size * dim_[d].stride;
    index_[d] = 0;
    --d;
    ++index_[d];
    offset_ += dim_[d].stride;
  }
}

void TensorWalk::Copy(std::uint64_t count, void* to) noexcept {
  auto* out = static_cast<unsigned char*>(to);
  if (dims_ == 0) {
    if (count != 0) std::memcpy(out, data_, element_bytes_);
    return;
  }
  const Dim& inner = dim_[dims_ - 1];
  while (count > 0) {
    const std::int64_t left = inner.size - index_[dims_ - 1];
    const std::int64_t run =
        count < static_cast<std::uint64_t>(left) ? static_cast<std::int64_t>(count) : left;
    CopyRun(data_ + offset_ * static_cast<std::int64_t>(element_bytes_), inner.stride,
            element_bytes_, run, out);
    out += static_cast<std::size_t>(run) * element_bytes_;
    count -= static_cast<std::uint64_t>(run);
    Advance(run);
  }
}

}  // namespace statcollect::stats
