// Enumerations shared by agent, wire and store. Their values are part of the wire and disk formats:
// add at the end, never renumber.
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
  kBool = 15,  // one byte per element; any nonzero byte is true
  kC64 = 16,   // two f32: real, imaginary
  kC128 = 17,  // two f64: real, imaginary
};
inline constexpr int kDTypeCount = 18;

// The kind of an observed tensor. Stages of a step, in order: output, input, inspect (forward);
// grad_*, inspect_grad (backward); weight_grad; weight and optimizer_state (after the update).
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
  kBuffer = 11,    // untrained state of a module, such as BatchNorm's running statistics
  kOperator = 12,  // result of an operator within a module, or a tensor that it uses (docs/zoom.md)
};
inline constexpr int kKindCount = 13;

// The pass of an observation. `init`: before the first step of a launch (weights as loaded);
// `eval`: no-grad or evaluation pass.
enum class Mode : std::uint8_t { kUnspecified = 0, kTrain = 1, kEval = 2, kInit = 3 };
inline constexpr int kModeCount = 4;

// Statistics that records of other tools may lack: bit n of Layout::absent and Layout::untrusted.
enum class Statistic : std::uint8_t {
  kMin = 0,
  kMax = 1,
  kMean = 2,
  kStd = 3,
  kL1 = 4,
  kL2 = 5,
  kNan = 6,
  kInf = 7,      // neither infinity was counted
  kInfSign = 8,  // infinities of both signs were counted together, in pos_inf
  kZero = 9,
  kNeg = 10,
  kPos = 11,
  kHash = 12,
  kShape = 13,  // including the number of elements
};
inline constexpr int kStatisticCount = 14;

constexpr std::uint32_t BitOf(Statistic statistic) {
  return std::uint32_t{1} << static_cast<unsigned>(statistic);
}

// The kind of a record's hash. Only hashes of the same kind are comparable.
enum class HashKind : std::uint8_t {
  kContent2 = 0,  // statagent's own, of definition 2 (decision 7): read, no longer written
  kCrc32 = 1,     // of the tensor's bytes
  kXor64 = 2,     // XOR of the tensor's 64-bit words
  kMd5 = 3,       // first 64 bits, big endian
  kSha1 = 4,      // first 64 bits, big endian
  kContent3 = 5,  // statagent's own, of definition 3: agent/stats/fingerprint.h
  kRows3 = 6,     // the same, of a tensor with an unordered dimension (Placement): equal for equal
                  // sets of rows. The sketch is of this kind, too
};
inline constexpr int kHashKindCount = 7;

// Whether the hash is statagent's own, of the raw bits of the elements, whichever the definition.
constexpr bool IsContent(HashKind kind) {
  return kind == HashKind::kContent2 || kind == HashKind::kContent3;
}

// The point in a step at which memory was measured.
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

// Quantities of a memory record, in bytes: bit n of MemoryRecord::present. Unless stated otherwise
// they are of the device, from the framework's allocator, at the time of the record; "max" is the
// maximum since the process began.
enum class MemoryQuantity : std::uint8_t {
  kAllocated = 0,
  kMaxAllocated = 1,
  kReserved = 2,  // by the allocator, from the device
  kMaxReserved = 3,
  kInactive = 4,  // free split blocks that cannot be released
  kMaxInactive = 5,
  kParameter = 6,  // of the watched model's tensors on this rank; also the next two
  kGradient = 7,
  kBuffer = 8,
  kOptimizerState = 9,
  kDeviceFree = 10,  // of the whole device, all processes; also the next one
  kDeviceTotal = 11,
  kHostRss = 12,  // resident memory of the process; also the next one
  kHostMaxRss = 13,
  kHostFree = 14,  // of the machine: available without swapping; also the next one
  kHostTotal = 15,
  kStepMaxAllocated = 16,  // maximum within the step so far
  kAllocatedDelta = 17,    // of a module's record: what its forward pass allocated, and by how much
                           // it raised the peak
  kPeakDelta = 18,
};
inline constexpr int kMemoryQuantityCount = 19;

constexpr std::uint32_t BitOf(MemoryQuantity quantity) {
  return std::uint32_t{1} << static_cast<unsigned>(quantity);
}

// How the padding of an input was determined.
enum class DensityType : std::uint8_t {
  kUnspecified = 0,
  kEmbed = 1,  // padding index of the embedding that it goes into
  kLabel = 2,  // ignore index of the loss
};
inline constexpr int kDensityTypeCount = 3;

// What to do with a run name that already has data.
enum class IfExists : std::uint8_t { kUnspecified = 0, kError = 1, kReplace = 2, kAppend = 3 };
inline constexpr int kIfExistsCount = 4;

}  // namespace statcollect

#endif  // STATCOLLECT_COMMON_TYPES_H_
