#include "agent/stats/cpu/engine.h"

#include <algorithm>
#include <array>
#include <limits>
#include <string>

#include "agent/stats/float_environment.h"
#include "agent/stats/tensor_walk.h"
#include "common/names.h"
#include "common/shape.h"

namespace statcollect::stats {

// What is stored under HashKind::kContent compares with what has always been stored there.
static_assert(
    kDefinition == 2,
    "a new definition of hash and sketch needs a HashKind of its own (common/types.h), which the agent "
    "writes into its layouts");
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
class ChunkReducer {
 public:
  ChunkReducer(BlockReader& reader, DType dtype, const Range& range, const CpuKernels& kernels,
               ChunkState& chunk) noexcept
      : reader_(reader), range_(range), kernels_(kernels), dtype_(dtype), chunk_(chunk) {}

  void Reduce() noexcept {
    const DTypeKernels& of = kernels_.of[static_cast<int>(dtype_)];
    if (of.exact == nullptr) {
      ReduceFloat64(of.add);
      return;
    }
    for (std::uint32_t sum = 0; sum < chunk_.sketch_width; ++sum) {
      std::fill_n(chunk_.narrow_sketch[sum], kLanes, 0.0f);
    }
    Run(of.add);
    if (FloatsSuffice()) {
      narrow_ = true;
      ShiftIfNeeded(of.shifted);
      return;
    }
    ForgetSums();
    ReduceFloat64(of.exact);
  }

  Partial Result() noexcept {
    Partial partial;
    partial.components = chunk_.components;
    partial.nan = chunk_.nan;
    partial.pos_inf = chunk_.pos_inf;
    partial.neg_inf = chunk_.neg_inf;
    partial.zero = chunk_.zero;
    partial.neg = chunk_.neg;
    partial.hash = chunk_.hash;
    if (chunk_.finite() == 0) return partial;
    partial.min = chunk_.min;
    partial.max = chunk_.max;
    partial.moments =
        CombineLanes(chunk_.lanes, chunk_.finite(), chunk_.level, chunk_.shift * ScaleOf(chunk_.level));
    if (narrow_) {
      kernels_.finish_narrow_sketch(chunk_, partial.sketch);
      return partial;
    }
    for (std::uint32_t sum = 0; sum < chunk_.sketch_width; ++sum) {
      for (const double lane : chunk_.sketch[sum]) partial.sketch[sum] += lane;
    }
    return partial;
  }

 private:
  void Run(BlockFunction add) noexcept {
    reader_.ForEachBlock(range_.begin, range_.count, (range_.first + range_.begin) / kLanes,
                         [&](const void* block, std::size_t components, std::uint64_t group) {
                           add(block, components, group, chunk_);
                         });
  }

  // Whether what was summed in float32 is finite, and no square was lost below float32's range.
  bool FloatsSuffice() const noexcept {
    double sum = 0;
    for (int lane = 0; lane < kLanes; ++lane)
      sum += chunk_.lanes.magnitudes[lane] + chunk_.lanes.squares[lane];
    const double magnitude = std::max(std::abs(chunk_.min), std::abs(chunk_.max));
    return sum - sum == 0 && (sum == 0 || magnitude >= kNarrowMagnitudeMin);
  }

  // Sums of the deviations, about 0 if that loses nothing, else about a value near the mean.
  void ShiftIfNeeded(BlockFunction shifted) noexcept {
    ChunkLanes& lanes = chunk_.lanes;
    double sum = 0, squares = 0;
    for (int lane = 0; lane < kLanes; ++lane) {
      sum += lanes.shifted_sum[lane];
      squares += lanes.squares[lane];
    }
    const double mean = sum / static_cast<double>(chunk_.components);
    if (squares <= kCondition * (squares - sum * mean)) {
      std::copy_n(lanes.squares, kLanes, lanes.shifted_squares);
      return;
    }
    chunk_.shift = static_cast<double>(static_cast<float>(mean));
    std::fill_n(lanes.shifted_sum, kLanes, 0.0);
    std::fill_n(lanes.shifted_squares, kLanes, 0.0);
    Run(shifted);
  }

  // As before the first block, but for the hash.
  void ForgetSums() noexcept {
    chunk_.components = chunk_.zero = chunk_.neg = 0;
    chunk_.min = std::numeric_limits<double>::infinity();
    chunk_.max = -chunk_.min;
  }

  void ReduceFloat64(BlockFunction add) noexcept {
    ForgetLanes();
    Run(add);
    if ((dtype_ != DType::kF64 && dtype_ != DType::kC128) || chunk_.finite() == 0) return;
    chunk_.level = LevelOf(std::max(std::abs(chunk_.min), std::abs(chunk_.max)));
    if (chunk_.level == 0) return;
    ForgetLanes();
    Run(kernels_.scaled);
  }

  void ForgetLanes() noexcept {
    chunk_.lanes = {};
    for (std::uint32_t sum = 0; sum < chunk_.sketch_width; ++sum) {
      std::fill_n(chunk_.sketch[sum], kLanes, 0.0);
    }
  }

  BlockReader& reader_;
  const Range range_;
  const CpuKernels& kernels_;
  const DType dtype_;
  ChunkState& chunk_;
  bool narrow_ = false;  // the sketch is in narrow_sketch
};

constexpr std::size_t kStripesAtOnce = 64;

// On whichever thread: `walk` is copied.
Partial ReduceStripe(const TensorWalk& walk, DType dtype, const Range& range, std::uint32_t sketch_width,
                     const CpuKernels& kernels) noexcept {
  const DefaultFloatEnvironment environment;
  BlockReader reader(walk, dtype);
  Partial stripe;
  for (std::uint64_t done = 0; done < range.count; done += kChunkComponents) {
    ChunkState chunk;
    chunk.sketch_width = sketch_width;
    const std::uint64_t count = std::min(kChunkComponents, range.count - done);
    ChunkReducer reducer(reader, dtype, {range.begin + done, count, range.first}, kernels, chunk);
    reducer.Reduce();
    Partial next = reducer.Result();
    Append(stripe, next, sketch_width);
  }
  return stripe;
}

void AppendStripe(Partial& partial, Partial& stripe, std::uint32_t sketch_width) noexcept {
  const DefaultFloatEnvironment environment;
  Append(partial, stripe, sketch_width);
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
                  "one stride per dimension, or none for a contiguous tensor");
  }
  if (elements == 0) return Status::Ok();
  STATCOLLECT_RETURN_IF_ERROR(CheckStrides(tensor));
  if (tensor.data == nullptr)
    return Refuse("no data for " + std::to_string(elements) + " elements", "a pointer");
  const std::size_t alignment = ComponentBytes(tensor.dtype);
  if (reinterpret_cast<std::uintptr_t>(tensor.data) % alignment != 0) {
    return Refuse("data of dtype " + std::string(Name(tensor.dtype)) +
                      " are at an address not divisible by " + std::to_string(alignment),
                  "aligned elements");
  }
  return Status::Ok();
}

std::uint64_t ComponentCount(const CpuTensor& tensor) noexcept {
  return NumelOf(tensor.shape) * (IsComplex(tensor.dtype) ? 2 : 1);
}

void Accumulate(const CpuTensor& tensor, const Range& range, std::uint32_t sketch_width,
                const CpuKernels& kernels, Partial& partial, CpuWorkers* workers) noexcept {
  const TensorWalk walk(tensor);
  const auto stripe_at = [&](std::uint64_t done) {
    return Range{range.begin + done, std::min(kStripeComponents, range.count - done), range.first};
  };
  // One stripe needs no helper, nor 40 KiB of room for many.
  if (workers == nullptr || workers->threads() < 2 || range.count <= kStripeComponents) {
    for (std::uint64_t done = 0; done < range.count; done += kStripeComponents) {
      Partial stripe = ReduceStripe(walk, tensor.dtype, stripe_at(done), sketch_width, kernels);
      AppendStripe(partial, stripe, sketch_width);
    }
    return;
  }
  // As many at a time as have room on the stack.
  std::array<Partial, kStripesAtOnce> stripes;
  for (std::uint64_t done = 0; done < range.count; done += kStripesAtOnce * kStripeComponents) {
    const std::uint64_t left = (range.count - done + kStripeComponents - 1) / kStripeComponents;
    const auto count = static_cast<std::size_t>(std::min<std::uint64_t>(left, kStripesAtOnce));
    workers->Run(count, [&](std::size_t i) {
      stripes[i] =
          ReduceStripe(walk, tensor.dtype, stripe_at(done + i * kStripeComponents), sketch_width, kernels);
    });
    for (std::size_t i = 0; i < count; ++i) AppendStripe(partial, stripes[i], sketch_width);
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
                       std::uint32_t* samples_written, CpuWorkers* workers) noexcept {
  Partial partial;
  const std::uint64_t components = ComponentCount(tensor);
  Accumulate(tensor, {0, components, 0}, static_cast<std::uint32_t>(sketch.size()), BestKernels(), partial,
             workers);
  *samples_written = CopySamples(tensor, samples);
  return Finished(partial, IsComplex(tensor.dtype) ? components / 2 : components, sketch);
}

}  // namespace statcollect::stats
