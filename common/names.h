// Validation of names from outside, and the text forms of the enumerations.
#ifndef STATCOLLECT_COMMON_NAMES_H_
#define STATCOLLECT_COMMON_NAMES_H_

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "common/status.h"
#include "common/types.h"

namespace statcollect {

inline constexpr std::size_t kRunNameBytesMax = 128;
inline constexpr std::size_t kTensorNameBytesMax = 1024;

// Run names: [A-Za-z0-9][A-Za-z0-9._-]{0,127}; otherwise kInvalidArgument, with the offending part
// made printable.
Status ValidateRunName(std::string_view name);

// Names of tensors, scalars, modules and configuration keys: 1..1024 bytes of valid UTF-8 without
// control characters (C0, DEL, C1) and without bidirectional controls.
// `what` names the kind in the message
// ("activation", "scalar").
Status ValidateTensorName(std::string_view what, std::string_view name);

// For logs and messages: replaces control characters, invalid UTF-8 and bidi controls by \xNN, and
// cuts after `bytes_max` with "...".
std::string Printable(std::string_view text, std::size_t bytes_max = 200);

// Text forms ("f32", "grad_output", "train", "replace"); "unspecified" for values out of range.
std::string_view Name(DType dtype);
std::string_view Name(Kind kind);
std::string_view Name(Mode mode);
std::string_view Name(Statistic statistic);
std::string_view Name(HashKind kind);
std::string_view Name(IfExists policy);
std::string_view Name(MemoryPhase phase);        // "post_forward"
std::string_view Name(MemoryQuantity quantity);  // "max_allocated"
std::string_view Name(DensityType type);         // "embed"
std::optional<DType> ParseDType(std::string_view name);
std::optional<Kind> ParseKind(std::string_view name);
std::optional<IfExists> ParseIfExists(std::string_view name);

constexpr bool IsOfParameter(Kind kind) {
  return kind == Kind::kWeight || kind == Kind::kWeightGrad || kind == Kind::kOptimizerState;
}
constexpr bool IsGradientOfActivation(Kind kind) {
  return kind == Kind::kGradOutput || kind == Kind::kGradInput || kind == Kind::kInspectGrad;
}

// Bytes per element; 0 for kUnspecified. Complex: both parts.
std::size_t DTypeBytes(DType dtype);
inline bool IsWholeNumber(DType dtype) { return dtype >= DType::kI8 && dtype <= DType::kBool; }
inline bool IsComplex(DType dtype) { return dtype == DType::kC64 || dtype == DType::kC128; }
// Whether sketches are kept in float64 (f64, c128, i64, u64); otherwise in float32.
inline bool HasWideSketch(DType dtype) {
  return dtype == DType::kF64 || dtype == DType::kC128 || dtype == DType::kI64 ||
         dtype == DType::kU64;
}

}  // namespace statcollect

#endif  // STATCOLLECT_COMMON_NAMES_H_
