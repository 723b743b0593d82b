#include "common/byte_size.h"
#include "common/parse.h"

namespace statcollect {

std::optional<std::uint64_t> ParseByteSize(std::string_view text) {
  constexpr std::uint64_t kBytesMax = std::uint64_t{1} << 60;
  const auto leading = ParseLeadingNumber<std::uint64_t>(text);
  if (!leading || leading->number == 0) return std::nullopt;
  const auto [number, unit] = *leading;
  const int shift = unit == "MiB" ? 20 : unit == "GiB" ? 30 : unit == "TiB" ? 40 : 0;
  if (shift == 0 || number > kBytesMax >> shift) return std::nullopt;
  return number << shift;
}

std::string Mebibytes(std::uint64_t bytes) { return std::to_string(bytes >> 20) + " MiB"; }

}  // namespace statcollect
