// What settings and class names say about the kernels that compute a module.
#ifndef STATCOLLECT_SERVER_QUERY_VERDICT_KERNELS_H_
#define STATCOLLECT_SERVER_QUERY_VERDICT_KERNELS_H_

#include <cstdint>
#include <span>
#include <string_view>

#include "server/query/settings/module_keys.h"

namespace statcollect::query {

// The passes of a convolution that two runs may compute with different algorithms.
enum class OtherConvolutions : std::uint8_t { kNone, kForward, kAll };

// From the runs' configurations: a different library or device, or an algorithm chosen by the batch
// size or by benchmarking.
OtherConvolutions ConvolutionsThatMayDiffer(const Config& a, const Config& b);

// Whether a Winograd algorithm exists for a filter of this shape: 3x3 and more.
bool AllowsWinograd(std::span<const std::int64_t> shape);

// Whether the derivative of this module class is discontinuous: ReLU, LeakyReLU, Hardtanh ...
bool HasKink(std::string_view class_name);

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_VERDICT_KERNELS_H_
