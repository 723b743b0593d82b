// A tensor's elements in logical row-major order, whatever its strides; internal to agent/stats.
#ifndef STATCOLLECT_AGENT_STATS_TENSOR_WALK_H_
#define STATCOLLECT_AGENT_STATS_TENSOR_WALK_H_

#include <array>
#include <cstddef>
#include <cstdint>

#include "agent/stats/stats.h"
#include "common/records.h"

namespace statcollect::stats {

// Precondition of everything here: Validate(tensor) is OK. Never allocates. Not thread-safe; copies
// are independent.
class TensorWalk {
 public:
  explicit TensorWalk(const CpuTensor& tensor) noexcept;

  // Elements of the tensor.
  std::uint64_t size() const { return size_; }
  // True if the elements lie one after the other; Contiguous(i) is then where element i lies.
  bool contiguous() const { return dims_ == 0 || (dims_ == 1 && dim_[0].stride == 1); }
  const void* Contiguous(std::uint64_t element) const { return data_ + element * element_bytes_; }

  // Moves to the element, element <= size().
  void Seek(std::uint64_t element) noexcept;
  // Copies the next `count` elements to `to`, count <= what is left, and moves on.
  void Copy(std::uint64_t count, void* to) noexcept;

  // Offset, in elements from the data pointer, of the element walked to. Meaningless at size().
  std::int64_t offset() const { return offset_; }

 private:
  struct Dim {
    std::int64_t size = 0, stride = 0;  // size > 1
  };
  void Collapse(const CpuTensor& tensor) noexcept;
  void Advance(std::int64_t steps) noexcept;

  const unsigned char* data_;
  std::size_t element_bytes_;
  std::uint64_t size_ = 1;
  int dims_ = 0;  // after sizes of 1 are dropped and neighbours that lie behind each other are
                  // joined; outermost first
  std::array<Dim, kDimsMax> dim_;
  std::array<std::int64_t, kDimsMax> index_;
  std::int64_t offset_ = 0;
};

}  // namespace statcollect::stats

#endif  // STATCOLLECT_AGENT_STATS_TENSOR_WALK_H_
