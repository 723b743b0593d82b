#include "common/byte_size.h"

#include <charconv>
#include <system_error>

namespace statcollect {

std::optional<std::uint64_t> ParseByteSize(std::string_view text) {
  constexpr std::uint64_t kBytesMax = std::uint64_t{1} << 60;
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || number == 0) return std::nullopt;
  const std::string_view unit = text.substr(static_cast<std::size_t>(end - text.data()));
  const int shift = unit == "MiB" ? 20 : unit == "GiB" ? 30 : unit == "TiB" ? 40 : 0;
  if (shift == 0 || number > kBytesMax >> shift) return std::nullopt;
  return number << shift;
}

std::string Mebibytes(std::uint64_t bytes) { return std::to_string(bytes >> 20) + " MiB"; }

}  // namespace statcollect
