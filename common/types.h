// The small enumerations that agent, wire and store share. Numeric values are part of the wire and disk
// formats: add at the end, never renumber.
#ifndef STATCOLLECT_COMMON_TYPES_H_
#define STATCOLLECT_COMMON_TYPES_H_

#include <cstdint>

namespace statcollect {

enum class DType : std::uint8_t {
  kUnspecified = 0,
  kF64 = 1,
  kF32 = 2,
  kF16 = 3,
  kBf16 = 4,
  kF8E4M3 = 5,  // "fn" variant: no infinities, NaN is 0x7f and 0xff
  kF8E5M2 = 6,
  kI8 = 7,
  kI16 = 8,
  kI32 = 9,
  kI64 = 10,
  kU8 = 11,
  kU16 = 12,
  kU32 = 13,
  kU64 = 14,
  kBool = 15,  // one byte an element; any non-zero byte is true
  kC64 = 16,   // two f32: real, imaginary
  kC128 = 17,  // two f64: real, imaginary
};
inline constexpr int kDTypeCount = 18;

// What was observed. Order of the stages in a step: output/input/inspect (forward), then grad_*/inspect_grad
// (backward), then weight_grad, then weight and optimizer_state (after the update).
enum class Kind : std::uint8_t {
  kUnspecified = 0,
  kOutput = 1,
  kInput = 2,
  kGradOutput = 3,
  kGradInput = 4,
  kWeight = 5,
  kWeightGrad = 6,
  kOptimizerState = 7,
  kInspect = 8,
  kInspectGrad = 9,
  kBatch = 10,
  kBuffer = 11,  // a module's state that is not trained, such as BatchNorm's running statistics
};
inline constexpr int kKindCount = 12;

// In which pass. `init`: before the first step of a launch (weights as loaded); `eval`: no-grad or evaluation
// pass.
enum class Mode : std::uint8_t { kUnspecified = 0, kTrain = 1, kEval = 2, kInit = 3 };
inline constexpr int kModeCount = 4;

// What may be missing from a record that another tool wrote: bit n of Layout::absent and Layout::untrusted.
enum class Statistic : std::uint8_t {
  kMin = 0,
  kMax = 1,
  kMean = 2,
  kStd = 3,
  kL1 = 4,
  kL2 = 5,
  kNan = 6,
  kInf = 7,      // neither infinity was counted
  kInfSign = 8,  // infinities were counted together: the number is in pos_inf
  kZero = 9,
  kNeg = 10,
  kPos = 11,
  kHash = 12,
  kShape = 13,  // nor the number of elements
};
inline constexpr int kStatisticCount = 14;

constexpr std::uint32_t BitOf(Statistic statistic) {
  return std::uint32_t{1} << static_cast<unsigned>(statistic);
}

// What a record's hash is. Only hashes of one kind are comparable.
enum class HashKind : std::uint8_t {
  kContent = 0,  // ours: agent/stats/stats.h
  kCrc32 = 1,    // of the tensor's bytes
  kXor64 = 2,    // exclusive-or of the tensor's 64-bit words
  kMd5 = 3,      // first 64 bits, big endian
  kSha1 = 4,     // first 64 bits, big endian
};
inline constexpr int kHashKindCount = 5;

// When in a step memory was looked at.
enum class MemoryPhase : std::uint8_t {
  kUnspecified = 0,
  kPreForward = 1,
  kPostForward = 2,
  kPreBackward = 3,
  kPostBackward = 4,
  kPreOptimizer = 5,
  kPostOptimizer = 6,
};
inline constexpr int kMemoryPhaseCount = 7;

// What a memory record may tell, in bytes: bit n of MemoryRecord::present. Without another word: of the
// device, as the framework's allocator counts them, at the time of the record; "max" is the highest since the
// process began.
enum class MemoryQuantity : std::uint8_t {
  kAllocated = 0,
  kMaxAllocated = 1,
  kReserved = 2,  // by the allocator, from the device
  kMaxReserved = 3,
  kInactive = 4,  // split blocks that are free and cannot be given back
  kMaxInactive = 5,
  kParameter = 6,  // of the watched model's tensors on this rank, as the next two
  kGradient = 7,
  kBuffer = 8,
  kOptimizerState = 9,
  kDeviceFree = 10,  // of the whole device, all processes, as the next one
  kDeviceTotal = 11,
  kHostRss = 12,  // resident pages of the process, as the next one
  kHostMaxRss = 13,
  kHostFree = 14,  // of the machine: what can be had without swapping; as the next one
  kHostTotal = 15,
  kStepMaxAllocated = 16,  // highest within the step so far
  kAllocatedDelta =
      17,  // of a module's record: what its forward pass added, and by how much it raised the highest
  kPeakDelta = 18,
};
inline constexpr int kMemoryQuantityCount = 19;

constexpr std::uint32_t BitOf(MemoryQuantity quantity) {
  return std::uint32_t{1} << static_cast<unsigned>(quantity);
}

// What the padding of an input is told by.
enum class DensityType : std::uint8_t {
  kUnspecified = 0,
  kEmbed = 1,  // the padding index of the embedding that it goes into
  kLabel = 2,  // the ignore index of the loss
};
inline constexpr int kDensityTypeCount = 3;

// What to do with a run name that already has data.
enum class IfExists : std::uint8_t { kUnspecified = 0, kError = 1, kReplace = 2, kAppend = 3 };
inline constexpr int kIfExistsCount = 4;

}  // namespace statcollect

#endif  // STATCOLLECT_COMMON_TYPES_H_
