#include "agent/stats/cpu/engine.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <optional>
#include <string>

#include "agent/stats/component_values.h"
#include "agent/stats/cpu/stream_copy.h"
#include "agent/stats/float_environment.h"
#include "agent/stats/tensor_walk.h"
#include "common/names.h"
#include "common/shape.h"

namespace statcollect::stats {

// What is stored under HashKind::kContent3 compares with what has always been stored there.
static_assert(kDefinition == 3,
              "a new definition of hash and sketch needs a HashKind of its own (common/types.h), "
              "which the agent "
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
    if (size < 0)
      return Refuse("shape " + Numbers(tensor.shape) + " has a negative size", "sizes from 0");
    empty = empty || size == 0;
  }
  *elements = empty ? 0 : 1;
  for (const std::int64_t size : tensor.shape) {
    if (empty) break;
    if (static_cast<std::uint64_t>(size) > kElementsMax / *elements) {
      return Refuse("shape " + Numbers(tensor.shape) + " has more than 2^62 elements",
                    "2^62 at most");
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
    const std::uint64_t magnitude = stride < 0
                                        ? std::uint64_t{0} - static_cast<std::uint64_t>(stride)
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

  // Calls add(block, components, how many were before it) over [begin, begin + count).
  template <typename Add>
  void ForEachBlock(std::uint64_t begin, std::uint64_t count, const Add& add) noexcept {
    if (!walk_.contiguous()) walk_.Seek(begin / components_per_element_);
    for (std::uint64_t done = 0; done < count; done += kBlockComponents) {
      const std::uint64_t components = std::min<std::uint64_t>(kBlockComponents, count - done);
      add(Block(begin + done, components), components, done);
    }
  }
  std::size_t component_bytes() const { return component_bytes_; }

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

// Adds hash and sketch of components anywhere in the tensor, in runs of consecutive ones. Whole
// groups are read where they lie; what a run has of others is collected in a buffer, whose other
// components are 0.
class FingerprintGatherer {
 public:
  FingerprintGatherer(RunsFunction add, std::size_t component_bytes, ChunkState& chunk) noexcept
      : add_(add), bytes_(component_bytes), chunk_(chunk) {}

  // `count` components that lie at `from`, the first being number `at` of the tensor. They must
  // stay there until Flush, or until FlushRuns. `apart`: no run is near enough in the tensor to be
  // computed together with this one.
  void Add(const unsigned char* from, std::uint64_t at, std::uint64_t count, bool apart) noexcept {
    while (count > 0) {
      const std::uint64_t room = std::min(count, kBlockComponents - at % kBlockComponents);
      std::uint64_t taken = room;
      if (at % kLanes == 0 && (room >= kDirect || (apart && room % kLanes == 0))) {
        FlushCollected();
        taken = room / kLanes * kLanes;
        if (runs_ == kRunsMax) FlushRuns();
        run_[runs_++] = {from, at / kLanes, static_cast<std::uint32_t>(taken / kLanes)};
      } else {
        if (room >= kDirect) taken = kLanes - at % kLanes;
        Collect(from, at, taken);
      }
      from += taken * bytes_;
      at += taken;
      count -= taken;
    }
  }

  static constexpr std::uint64_t kDirect =
      64;  // components for which it pays to read them where they lie
  static constexpr std::uint64_t kGap =
      4;  // groups between two short runs that are computed all the same

  void FlushRuns() noexcept {
    if (runs_ != 0) add_(run_, runs_, chunk_);
    runs_ = 0;
  }
  void Flush() noexcept {
    FlushRuns();
    FlushCollected();
  }

 private:
  static constexpr std::size_t kRunsMax = 64;

  // Within one block.
  void Collect(const unsigned char* from, std::uint64_t at, std::uint64_t count) noexcept {
    const std::uint64_t first = at / kLanes, last = (at + count - 1) / kLanes;
    if (at < next_ || first > end_ + kGap || first / kBlockGroups != begin_ / kBlockGroups) {
      FlushCollected();
    }
    next_ = at + count;
    if (!cleared_) std::fill_n(buffer_, kBlockComponents * bytes_, static_cast<unsigned char>(0));
    cleared_ = true;
    if (begin_ == end_) begin_ = first;
    end_ = std::max(begin_ == end_ ? first + 1 : end_, last + 1);
    std::memcpy(buffer_ + at % kBlockComponents * bytes_, from, count * bytes_);
  }

  // In the order in which they were added: runs before are in front of what has been collected
  // since.
  void FlushCollected() noexcept {
    if (begin_ == end_) return;
    FlushRuns();
    unsigned char* from = buffer_ + begin_ % kBlockGroups * kLanes * bytes_;
    const GroupRun run = {from, begin_, static_cast<std::uint32_t>(end_ - begin_)};
    add_(&run, 1, chunk_);
    std::fill_n(from, (end_ - begin_) * kLanes * bytes_, static_cast<unsigned char>(0));
    begin_ = end_ = next_ = 0;
  }

  const RunsFunction add_;
  const std::size_t bytes_;
  ChunkState& chunk_;
  GroupRun run_[kRunsMax];
  std::size_t runs_ = 0;
  std::uint64_t begin_ = 0, end_ = 0;  // groups in the buffer, of one block
  std::uint64_t next_ = 0;             // component behind the last that was collected
  bool cleared_ = false;               // what is in the buffer beside those is 0
  alignas(64) unsigned char buffer_[kBlockComponents * kComponentBytesMax];
};

// Reduces one chunk. `range` has at most kChunkComponents components.
class ChunkReducer {
 public:
  ChunkReducer(BlockReader& reader, DType dtype, const Range& range, std::uint32_t sketch_width,
               const CpuKernels& kernels, ChunkState& chunk) noexcept
      : reader_(reader),
        range_(range),
        kernels_(kernels),
        of_(kernels.of[static_cast<int>(dtype)]),
        dtype_(dtype),
        sketch_width_(sketch_width),
        parts_(IsComplex(dtype) ? 2 : 1),
        in_place_(InPlace()),
        chunk_(chunk) {}

  void Reduce() noexcept {
    chunk_.in_place = in_place_;
    chunk_.sketch_width = sketch_width_;
    chunk_.read_ahead = BestReadAhead(reader_.component_bytes());
    ReduceMoments();
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
    partial.moments = CombineLanes(chunk_.lanes, chunk_.finite(), chunk_.level,
                                   chunk_.shift * ScaleOf(chunk_.level));
    std::copy_n(chunk_.sketch, chunk_.sketch_width, partial.sketch);
    return partial;
  }

 private:
  void ReduceMoments() noexcept {
    if (of_.exact == nullptr) {
      ReduceFloat64(of_.add);
      return;
    }
    ClearSketch();
    if (in_place_) {
      Run(of_.add);
    } else {
      RunWithFingerprint(of_.add, of_.narrow_runs);
    }
    if (FloatsSuffice()) {
      ShiftIfNeeded(of_.shifted);
      return;
    }
    ForgetSums();
    ReduceFloat64(of_.exact);
  }

  void Run(BlockFunction add) noexcept {
    const std::uint64_t first = IndexOf(range_.begin).first;
    reader_.ForEachBlock(range_.begin, range_.count,
                         [&](const void* block, std::size_t components, std::uint64_t done) {
                           add(block, components, (first + done) / kLanes, chunk_);
                         });
  }

  // Of a chunk whose blocks are not those of the tensor: its hash and sketch by `runs`, and, unless
  // it is null, `add` while a block is in the first-level cache.
  void RunWithFingerprint(BlockFunction add, RunsFunction runs) noexcept {
    FingerprintGatherer gatherer(runs, reader_.component_bytes(), chunk_);
    const std::size_t bytes = reader_.component_bytes();
    ElementRun run;  // in components
    Quads quads;
    reader_.ForEachBlock(
        range_.begin, range_.count,
        [&](const void* block, std::size_t components, std::uint64_t done) {
          if (add != nullptr && components == kBlockComponents && of_.add_quads != nullptr &&
              TakeQuads(run, range_.begin + done, quads)) {
            of_.add_quads(block, quads.number, chunk_);
            return;
          }
          if (add != nullptr) add(block, components, 0, chunk_);
          const auto* from = static_cast<const unsigned char*>(block);
          for (std::uint64_t at = 0, count; at < components; at += count) {
            if (run.count == 0) run = NextRun(run, range_.begin + done + at);
            count = std::min<std::uint64_t>(run.count, components - at);
            gatherer.Add(from + at * bytes, run.first, count, Apart(run));
            run.first += count;
            run.count -= count;
          }
          gatherer.FlushRuns();  // the next block may come to lie where this one does
        });
    gatherer.Flush();
  }

  struct Quads {
    std::uint64_t number[kBlockQuads];
  };

  // The quads of the full block that begins with the shard's component, where `run` has been walked
  // to. False, and `run` as before, if the block is not made of whole quads.
  bool TakeQuads(ElementRun& run, std::uint64_t component, Quads& quads) const noexcept {
    ElementRun next = run;
    std::uint64_t all = 0;  // bits that are set in any bound of a run
    std::uint64_t* to = quads.number;
    for (std::uint64_t left = kBlockQuads; left > 0;) {
      if (next.count == 0) next = NextRun(next, component + (kBlockQuads - left) * kQuadComponents);
      all |= next.first | next.count;
      if (all % kQuadComponents != 0) return false;
      const std::uint64_t count = std::min<std::uint64_t>(next.count / kQuadComponents, left);
      std::uint64_t quad = next.first / kQuadComponents;
      for (std::uint64_t* const end = to + count; to != end; ++to, ++quad) {
        asm volatile("");  // not by vectors: they are few
        *to = quad;
      }
      left -= count;
      next.first += count * kQuadComponents;
      next.count -= count * kQuadComponents;
    }
    run = next;
    return true;
  }

  // Index in the logical tensor of the shard's component, and how many follow it there as they do
  // here.
  ElementRun IndexOf(std::uint64_t component) const noexcept {
    if (range_.runs == nullptr)
      return {range_.first + component, range_.begin + range_.count - component};
    ElementRun run = range_.runs->At(component / parts_);
    run.first *= parts_;
    run.count *= parts_;
    run.row *= parts_;
    run.stride *= parts_;
    return run;
  }

  // What follows `run`, which has been walked to its end, at the shard's component.
  ElementRun NextRun(const ElementRun& run, std::uint64_t component) const noexcept {
    if (run.rows == 0) return IndexOf(component);
    return {run.first - run.row + run.stride, run.row, run.rows - 1, run.row, run.stride};
  }

  // Whether runs are whole groups (at least: if this one is) that are far enough from each other,
  // and that blocks of the shard do not cut into short pieces.
  static bool Apart(const ElementRun& run) noexcept {
    return run.row % kLanes == 0 &&
           run.stride >= run.row + (FingerprintGatherer::kGap + 1) * kLanes &&
           (run.row >= 2 * FingerprintGatherer::kDirect || kBlockComponents % run.row == 0);
  }

  // Whether the chunk's blocks are blocks of the logical tensor.
  bool InPlace() const noexcept {
    const ElementRun run = IndexOf(range_.begin);
    return run.first % kBlockComponents == 0 && run.count >= range_.count;
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
    RaiseLevel();
    if (in_place_) return;
    chunk_.hash = 0;
    RunWithFingerprint(nullptr, of_.exact_runs);
  }

  void RaiseLevel() noexcept {
    if ((dtype_ != DType::kF64 && dtype_ != DType::kC128) || chunk_.finite() == 0) return;
    chunk_.level = LevelOf(std::max(std::abs(chunk_.min), std::abs(chunk_.max)));
    if (chunk_.level == 0) return;
    ForgetLanes();
    Run(kernels_.scaled);
  }

  void ForgetLanes() noexcept {
    chunk_.lanes = {};
    ClearSketch();
  }

  void ClearSketch() noexcept { std::fill_n(chunk_.sketch, chunk_.sketch_width, 0.0); }

  BlockReader& reader_;
  const Range range_;
  const CpuKernels& kernels_;
  const DTypeKernels& of_;
  const DType dtype_;
  const std::uint32_t sketch_width_;
  const std::uint64_t parts_;  // components of an element
  const bool in_place_;
  ChunkState& chunk_;
};

constexpr std::size_t kStripesAtOnce = 64;

// On whichever thread: `walk` is copied.
Partial ReduceStripe(const TensorWalk& walk, DType dtype, const Range& range,
                     std::uint32_t sketch_width, const CpuKernels& kernels) noexcept {
  const DefaultFloatEnvironment environment;
  BlockReader reader(walk, dtype);
  Partial stripe;
  for (std::uint64_t done = 0; done < range.count; done += kChunkComponents) {
    ChunkState chunk;
    const std::uint64_t count = std::min(kChunkComponents, range.count - done);
    ChunkReducer reducer(reader, dtype, {range.begin + done, count, range.first, range.runs},
                         sketch_width, kernels, chunk);
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
    return Range{range.begin + done, std::min(kStripeComponents, range.count - done), range.first,
                 range.runs};
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
      stripes[i] = ReduceStripe(walk, tensor.dtype, stripe_at(done + i * kStripeComponents),
                                sketch_width, kernels);
    });
    for (std::size_t i = 0; i < count; ++i) AppendStripe(partial, stripes[i], sketch_width);
  }
}

TensorStats Finished(const Partial& partial, std::uint64_t numel,
                     std::span<double> sketch) noexcept {
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
                       std::uint32_t* samples_written, CpuWorkers* workers,
                       const Placement* placement) noexcept {
  Partial partial;
  std::optional<PlacementRuns> runs;
  if (placement != nullptr) runs.emplace(tensor, *placement);
  const std::uint64_t components = ComponentCount(tensor);
  Accumulate(tensor, {0, components, 0, runs ? &*runs : nullptr},
             static_cast<std::uint32_t>(sketch.size()), BestKernels(), partial, workers);
  *samples_written = CopySamples(tensor, samples);
  return Finished(partial, IsComplex(tensor.dtype) ? components / 2 : components, sketch);
}

std::uint32_t CopySamples(const CpuTensor& tensor, std::span<double> samples) noexcept {
  const std::uint64_t components = ComponentCount(tensor);
  const auto wanted =
      static_cast<std::uint32_t>(std::min<std::uint64_t>(samples.size(), components));
  if (wanted == 0) return 0;
  const std::uint32_t parts = IsComplex(tensor.dtype) ? 2 : 1;
  TensorWalk walk(tensor);
  walk.Seek(0);
  unsigned char element[16];
  double values[2];
  for (std::uint32_t i = 0; i < wanted; ++i) {
    if (i % parts == 0) {
      walk.Copy(1, element);
      ComponentsToDoubles(tensor.dtype, element, parts, values);
    }
    samples[i] = values[i % parts];
  }
  return wanted;
}

void CopyElements(const CpuTensor& tensor, std::uint64_t elements, void* to) noexcept {
  if (elements == 0) return;
  TensorWalk walk(tensor);
  if (!walk.contiguous()) return walk.Copy(elements, to);
  StreamCopy(to, walk.Contiguous(0), elements * DTypeBytes(tensor.dtype));
}

}  // namespace statcollect::stats
