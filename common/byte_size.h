// Sizes such as "200GiB".
#ifndef STATCOLLECT_COMMON_BYTE_SIZE_H_
#define STATCOLLECT_COMMON_BYTE_SIZE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace statcollect {

// A whole number of at least 1 followed by MiB, GiB or TiB, at most 2^60 bytes; otherwise empty.
std::optional<std::uint64_t> ParseByteSize(std::string_view text);

// "512 MiB": whole mebibytes, rounded down.
std::string Mebibytes(std::uint64_t bytes);

}  // namespace statcollect

#endif  // STATCOLLECT_COMMON_BYTE_SIZE_H_
