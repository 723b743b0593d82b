#include "agent/stats/cpu/stream_copy.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace statcollect::stats {
#if defined(__SSE2__)

void StreamCopy(void* to, const void* from, std::size_t bytes) noexcept {
  constexpr std::size_t kLine = 64;
  auto* out = static_cast<unsigned char*>(to);
  const auto* in = static_cast<const unsigned char*>(from);
  const std::size_t unaligned = -reinterpret_cast<std::uintptr_t>(out) % kLine;
  const std::size_t before = std::min(bytes, unaligned);
  std::memcpy(out, in, before);
  out += before;
  in += before;
  bytes -= before;
  for (; bytes >= kLine; bytes -= kLine, out += kLine, in += kLine) {
    for (std::size_t i = 0; i < kLine; i += sizeof(__m128i)) {
      const __m128i part = _mm_loadu_si128(reinterpret_cast<const __m128i*>(in + i));
      _mm_stream_si128(reinterpret_cast<__m128i*>(out + i), part);
    }
  }
  std::memcpy(out, in, bytes);
  _mm_sfence();
}

#else

void StreamCopy(void* to, const void* from, std::size_t bytes) noexcept {
  std::memcpy(to, from, bytes);
}

#endif
}  // namespace statcollect::stats
