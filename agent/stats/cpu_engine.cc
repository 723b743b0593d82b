#include "agent/stats/cpu_engine.h"

#include <algorithm>
#include <cfenv>
#include <string>

#include "agent/stats/tensor_walk.h"
#include "common/names.h"

namespace statcollect::stats {
namespace {

constexpr std::uint64_t kElementsMax = std::uint64_t{1} << 62;
constexpr std::size_t kComponentBytesMax = 8;

std::size_t ComponentBytes(DType dtype) { return DTypeBytes(dtype) / (IsComplex(dtype) ? 2 : 1); }

Status Refuse(const std::string& found, const std::string& expected) {
  return {Code::kInvalidArgument, "observe tensor: " + found + "; expected " + expected +
                                      "; pass the view as its framework describes it"};
}

std::string Numbers(std::span<const std::int64_t> values) {
  constexpr std::size_t kShown = 8;
  std::string text = "[";
  for (std::size_t i = 0; i < values.size() && i < kShown; ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(values[i]);
  }
  return text + (values.size() > kShown ? ", ...]" : "]");
}

Status CheckShape(const CpuTensor& tensor, std::uint64_t* elements) {
  if (tensor.shape.size() > kDimsMax) {
    return Refuse("it has " + std::to_string(tensor.shape.size()) + " dimensions",
                  std::to_string(kDimsMax) + " at most");
  }
  bool empty = false;
  for (const std::int64_t size : tensor.shape) {
    if (size < 0) return Refuse("shape " + Numbers(tensor.shape) + " has a negative size", "sizes from 0");
    empty = empty || size == 0;
  }
  *elements = empty ? 0 : 1;
  for (const std::int64_t size : tensor.shape) {
    if (empty) break;
    if (static_cast<std::uint64_t>(size) > kElementsMax / *elements) {
      return Refuse("shape " + Numbers(tensor.shape) + " has more than 2^62 elements", "2^62 at most");
    }
    *elements *= static_cast<std::uint64_t>(size);
  }
  return Status::Ok();
}

// Every element's address must be within 2^62 bytes of the data pointer.
Status CheckStrides(const CpuTensor& tensor) {
  if (tensor.strides.empty()) return Status::Ok();
  const auto reach_max = static_cast<std::uint64_t>(kElementsMax / DTypeBytes(tensor.dtype));
  std::uint64_t reach = 0;
  for (std::size_t i = 0; i < tensor.shape.size(); ++i) {
    const std::int64_t stride = tensor.strides[i];
    const std::uint64_t magnitude = stride < 0 ? std::uint64_t{0} - static_cast<std::uint64_t>(stride)
                                               : static_cast<std::uint64_t>(stride);
    const auto steps = static_cast<std::uint64_t>(tensor.shape[i]) - 1;
    if (steps == 0 || magnitude == 0) continue;
    if (magnitude > (reach_max - reach) / steps) {
      return Refuse("strides " + Numbers(tensor.strides) + " with shape " + Numbers(tensor.shape) +
                        " reach beyond 2^62 bytes",
                    "strides in elements, inside the address space");
    }
    reach += steps * magnitude;
  }
  return Status::Ok();
}

// Rounding to nearest, subnormals kept, no traps: the trainer may have set anything
// (torch.set_flush_denormal, -ffast-math).
class DefaultFloatEnvironment {
 public:
  DefaultFloatEnvironment() noexcept {
    std::fegetenv(&saved_);
    std::fesetenv(FE_DFL_ENV);
  }
  ~DefaultFloatEnvironment() { std::fesetenv(&saved_); }
  DefaultFloatEnvironment(const DefaultFloatEnvironment&) = delete;
  DefaultFloatEnvironment& operator=(const DefaultFloatEnvironment&) = delete;

 private:
  std::fenv_t saved_;
};

// Blocks of components in index order, where they lie or gathered into a buffer.
class BlockReader {
 public:
  BlockReader(const TensorWalk& walk, DType dtype) noexcept
      : walk_(walk),
        component_bytes_(ComponentBytes(dtype)),
        components_per_element_(IsComplex(dtype) ? 2 : 1) {}

  // Calls add(block, components, global number of its first group) over [begin, begin + count).
  template <typename Add>
  void ForEachBlock(std::uint64_t begin, std::uint64_t count, std::uint64_t first_group,
                    const Add& add) noexcept {
    if (!walk_.contiguous()) walk_.Seek(begin / components_per_element_);
    for (std::uint64_t done = 0; done < count; done += kBlockComponents) {
      const std::uint64_t components = std::min<std::uint64_t>(kBlockComponents, count - done);
      add(Block(begin + done, components), components, first_group + done / kLanes);
    }
  }

 private:
  const void* Block(std::uint64_t begin, std::uint64_t components) noexcept {
    if (walk_.contiguous()) {
      return static_cast<const unsigned char*>(walk_.Contiguous(0)) + begin * component_bytes_;
    }
    walk_.Copy(components / components_per_element_, buffer_);
    return buffer_;
  }

  TensorWalk walk_;
  const std::size_t component_bytes_;
  const std::uint64_t components_per_element_;
  alignas(64) unsigned char buffer_[kBlockComponents * kComponentBytesMax];
};

// Reduces one chunk. `range` has at most kChunkComponents components.
void ReduceChunk(BlockReader& reader, DType dtype, const Range& range, const CpuKernels& kernels,
                 ChunkState& chunk) noexcept {
  const std::uint64_t first_group = (range.first + range.begin) / kLanes;
  const auto reduce = [&](BlockFunction add) {
    chunk.lanes = {};
    for (std::uint32_t sum = 0; sum < chunk.sketch_width; ++sum) std::fill_n(chunk.sketch[sum], kLanes, 0.0);
    reader.ForEachBlock(range.begin, range.count, first_group,
                        [&](const void* block, std::size_t components, std::uint64_t group) {
                          add(block, components, group, chunk);
                        });
  };
  reduce(kernels.add[static_cast<int>(dtype)]);
  if ((dtype != DType::kF64 && dtype != DType::kC128) || chunk.finite() == 0) return;
  chunk.level = LevelOf(std::max(std::abs(chunk.min), std::abs(chunk.max)));
  if (chunk.level != 0) reduce(kernels.add_scaled);
}

void AppendChunk(const ChunkState& chunk, Partial& partial) noexcept {
  Partial next;
  next.components = chunk.components;
  next.nan = chunk.nan;
  next.pos_inf = chunk.pos_inf;
  next.neg_inf = chunk.neg_inf;
  next.zero = chunk.zero;
  next.neg = chunk.neg;
  next.hash = chunk.hash;
  if (chunk.finite() != 0) {
    next.min = chunk.min;
    next.max = chunk.max;
    next.moments = CombineLanes(chunk.lanes, chunk.finite(), chunk.level, chunk.shift * ScaleOf(chunk.level));
    for (std::uint32_t sum = 0; sum < chunk.sketch_width; ++sum) {
      for (const double lane : chunk.sketch[sum]) next.sketch[sum] += lane;
    }
  }
  Append(partial, next, chunk.sketch_width);
}

}  // namespace

Status Validate(const CpuTensor& tensor) {
  if (DTypeBytes(tensor.dtype) == 0) {
    return Refuse("dtype number " + std::to_string(static_cast<int>(tensor.dtype)) + " is unknown",
                  "one of 1.." + std::to_string(kDTypeCount - 1));
  }
  std::uint64_t elements = 0;
  STATCOLLECT_RETURN_IF_ERROR(CheckShape(tensor, &elements));
  if (!tensor.strides.empty() && tensor.strides.size() != tensor.shape.size()) {
    return Refuse(std::to_string(tensor.strides.size()) + " strides for " +
                      std::to_string(tensor.shape.size()) + " dimensions",
                  "one stride a dimension, or none for a contiguous tensor");
  }
  if (elements == 0) return Status::Ok();
  STATCOLLECT_RETURN_IF_ERROR(CheckStrides(tensor));
  if (tensor.data == nullptr)
    return Refuse("no data for " + std::to_string(elements) + " elements", "a pointer");
  const std::size_t alignment = ComponentBytes(tensor.dtype);
  if (reinterpret_cast<std::uintptr_t>(tensor.data) % alignment != 0) {
    return Refuse("data of dtype " + std::string(Name(tensor.dtype)) +
                      " lie at an address not divisible by " + std::to_string(alignment),
                  "aligned elements");
  }
  return Status::Ok();
}

std::uint64_t ComponentCount(const CpuTensor& tensor) noexcept {
  std::uint64_t components = IsComplex(tensor.dtype) ? 2 : 1;
  for (const std::int64_t size : tensor.shape) components *= static_cast<std::uint64_t>(size);
  return components;
}

void Accumulate(const CpuTensor& tensor, const Range& range, std::uint32_t sketch_width,
                const CpuKernels& kernels, Partial& partial) noexcept {
  const DefaultFloatEnvironment environment;
  BlockReader reader(TensorWalk(tensor), tensor.dtype);
  for (std::uint64_t done = 0; done < range.count; done += kChunkComponents) {
    ChunkState chunk;
    chunk.sketch_width = sketch_width;
    const std::uint64_t count = std::min(kChunkComponents, range.count - done);
    ReduceChunk(reader, tensor.dtype, {range.begin + done, count, range.first}, kernels, chunk);
    AppendChunk(chunk, partial);
  }
}

TensorStats Finished(const Partial& partial, std::uint64_t numel, std::span<double> sketch) noexcept {
  const DefaultFloatEnvironment environment;
  TensorStats stats;
  stats.numel = numel;
  stats.nan = partial.nan;
  stats.pos_inf = partial.pos_inf;
  stats.neg_inf = partial.neg_inf;
  stats.zero = partial.zero;
  stats.neg = partial.neg;
  stats.pos = partial.moments.count - partial.zero - partial.neg;
  stats.hash = partial.hash;
  stats.has_finite = partial.moments.count != 0;
  if (stats.has_finite) {
    const FiniteStats finite = Finish(partial);
    stats.min = finite.min;
    stats.max = finite.max;
    stats.mean = finite.mean;
    stats.std = finite.std;
    stats.l1 = finite.l1;
    stats.l2 = finite.l2;
  }
  for (std::size_t i = 0; i < sketch.size(); ++i) {
    sketch[i] = FinishSketchSum(partial.sketch[i], partial.moments.level);
  }
  return stats;
}

TensorStats ComputeCpu(const CpuTensor& tensor, std::span<double> sketch, std::span<double> samples,
                       std::uint32_t* samples_written) noexcept {
  Partial partial;
  const std::uint64_t components = ComponentCount(tensor);
  Accumulate(tensor, {0, components, 0}, static_cast<std::uint32_t>(sketch.size()), BestKernels(), partial);
  *samples_written = CopySamples(tensor, samples);
  return Finished(partial, IsComplex(tensor.dtype) ? components / 2 : components, sketch);
}

}  // namespace statcollect::stats
