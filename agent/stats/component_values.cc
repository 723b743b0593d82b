#include "agent/stats/component_values.h"

#include <cstdint>
#include <cstring>

#include "agent/stats/accumulate.h"

namespace statcollect::stats {
namespace {

template <typename Raw, typename Decode>
void Convert(const unsigned char* from, std::size_t count, double* to, const Decode& decode) {
  for (std::size_t i = 0; i < count; ++i) {
    Raw raw;
    std::memcpy(&raw, from + i * sizeof(Raw), sizeof(Raw));
    to[i] = static_cast<double>(decode(raw));
  }
}

template <typename Raw>
void Convert(const unsigned char* from, std::size_t count, double* to) {
  Convert<Raw>(from, count, to, [](Raw raw) { return raw; });
}

}  // namespace

void ComponentsToDoubles(DType dtype, const unsigned char* from, std::size_t count,
                         double* to) noexcept {
  using Bits = std::uint32_t;
  switch (dtype) {
    case DType::kF64:
    case DType::kC128:
      return Convert<double>(from, count, to);
    case DType::kF32:
    case DType::kC64:
      return Convert<float>(from, count, to);
    case DType::kF16:
      return Convert<std::uint16_t>(from, count, to,
                                    [](Bits bits) { return FloatOfF16<float>(bits); });
    case DType::kBf16:
      return Convert<std::uint16_t>(from, count, to,
                                    [](Bits bits) { return FloatOfBf16<float>(bits); });
    case DType::kF8E4M3:
      return Convert<std::uint8_t>(from, count, to,
                                   [](Bits bits) { return FloatOfF8E4M3<float>(bits); });
    case DType::kF8E5M2:
      return Convert<std::uint8_t>(from, count, to,
                                   [](Bits bits) { return FloatOfF8E5M2<float>(bits); });
    case DType::kI8:
      return Convert<std::int8_t>(from, count, to);
    case DType::kI16:
      return Convert<std::int16_t>(from, count, to);
    case DType::kI32:
      return Convert<std::int32_t>(from, count, to);
    case DType::kI64:
      return Convert<std::int64_t>(from, count, to);
    case DType::kU8:
      return Convert<std::uint8_t>(from, count, to);
    case DType::kU16:
      return Convert<std::uint16_t>(from, count, to);
    case DType::kU32:
      return Convert<std::uint32_t>(from, count, to);
    case DType::kU64:
      return Convert<std::uint64_t>(from, count, to);
    case DType::kBool:
      return Convert<std::uint8_t>(from, count, to,
                                   [](std::uint8_t byte) { return byte != 0 ? 1.0 : 0.0; });
    case DType::kUnspecified:
      break;
  }
}

}  // namespace statcollect::stats
