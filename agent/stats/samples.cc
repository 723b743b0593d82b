#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>

#include "agent/stats/cpu_engine.h"
#include "agent/stats/tensor_walk.h"
#include "common/names.h"

namespace statcollect::stats {
namespace {

template <typename T>
double As(const unsigned char* from) {
  T value;
  std::memcpy(&value, from, sizeof(value));
  return static_cast<double>(value);
}

template <typename T>
std::uint32_t BitsOf(const unsigned char* from) {
  T value;
  std::memcpy(&value, from, sizeof(value));
  return value;
}

double ComponentAt(DType dtype, const unsigned char* at) {
  switch (dtype) {
    case DType::kF64:
    case DType::kC128:
      return As<double>(at);
    case DType::kF32:
    case DType::kC64:
      return As<float>(at);
    case DType::kF16:
      return FloatOfF16<float>(BitsOf<std::uint16_t>(at));
    case DType::kBf16:
      return FloatOfBf16<float>(BitsOf<std::uint16_t>(at));
    case DType::kF8E4M3:
      return FloatOfF8E4M3<float>(BitsOf<std::uint8_t>(at));
    case DType::kF8E5M2:
      return FloatOfF8E5M2<float>(BitsOf<std::uint8_t>(at));
    case DType::kI8:
      return As<std::int8_t>(at);
    case DType::kI16:
      return As<std::int16_t>(at);
    case DType::kI32:
      return As<std::int32_t>(at);
    case DType::kI64:
      return As<std::int64_t>(at);
    case DType::kU8:
      return As<std::uint8_t>(at);
    case DType::kU16:
      return As<std::uint16_t>(at);
    case DType::kU32:
      return As<std::uint32_t>(at);
    case DType::kU64:
      return As<std::uint64_t>(at);
    case DType::kBool:
      return *at != 0 ? 1.0 : 0.0;
    case DType::kUnspecified:
      break;
  }
  return std::numeric_limits<double>::quiet_NaN();
}

}  // namespace

std::uint32_t CopySamples(const CpuTensor& tensor, std::span<double> samples) noexcept {
  const std::uint64_t components = ComponentCount(tensor);
  const auto wanted = static_cast<std::uint32_t>(std::min<std::uint64_t>(samples.size(), components));
  if (wanted == 0) return 0;
  const std::uint32_t parts = IsComplex(tensor.dtype) ? 2 : 1;
  const std::size_t component_bytes = DTypeBytes(tensor.dtype) / parts;
  TensorWalk walk(tensor);
  walk.Seek(0);
  unsigned char element[16];
  for (std::uint32_t i = 0; i < wanted; ++i) {
    if (i % parts == 0) walk.Copy(1, element);
    samples[i] = ComponentAt(tensor.dtype, element + i % parts * component_bytes);
  }
  return wanted;
}

}  // namespace statcollect::stats
