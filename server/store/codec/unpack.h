// Unpacks groups of bit-packed numbers with the widest vectors that the processor has.
#ifndef STATCOLLECT_SERVER_STORE_CODEC_UNPACK_H_
#define STATCOLLECT_SERVER_STORE_CODEC_UNPACK_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace statcollect {

// Whether this processor unpacks numbers of `width` bits eight at a time.
bool UnpacksWide(unsigned width);

// numbers[i] = base + (bits [i * width, (i + 1) * width) of `bits` << shift). Reads nothing beyond
// `bits`. Preconditions: UnpacksWide(width), shift < 64, and `bits` has them all.
void UnpackWide(std::string_view bits, unsigned width, std::uint64_t base, unsigned shift,
                std::span<std::uint64_t> numbers);

}  // namespace statcollect

#endif  // STATCOLLECT_SERVER_STORE_CODEC_UNPACK_H_
