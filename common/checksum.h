// CRC-32C (Castagnoli, reflected polynomial 0x82f63b78), the checksum of batches and stored blocks.
#ifndef STATCOLLECT_COMMON_CHECKSUM_H_
#define STATCOLLECT_COMMON_CHECKSUM_H_

#include <cstdint>
#include <string_view>

namespace statcollect {

// Crc32c("123456789") == 0xe3069283. `seed` continues an earlier result: Crc32c(b, Crc32c(a)) ==
// Crc32c(a + b).
std::uint32_t Crc32c(std::string_view bytes, std::uint32_t seed = 0);
// As above without the widest vectors: for processors that lack them, and for tests.
std::uint32_t Crc32cNarrow(std::string_view bytes, std::uint32_t seed = 0);
// As above without the processor's CRC instruction: for processors that lack it, and for tests.
std::uint32_t Crc32cPortable(std::string_view bytes, std::uint32_t seed = 0);

}  // namespace statcollect

#endif  // STATCOLLECT_COMMON_CHECKSUM_H_
