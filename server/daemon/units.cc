#include "server/daemon/units.h"

#include <limits>
#include <optional>
#include <string_view>
#include <utility>

#include "common/byte_size.h"
#include "common/names.h"
#include "common/parse.h"

namespace statcollect {
namespace {

struct Unit {
  std::string_view name;
  std::uint64_t factor;
};

constexpr Unit kTimes[] = {{"s", 1}, {"min", 60}, {"h", 3600}, {"d", 86400}, {"w", 7 * 86400}};
constexpr std::uint64_t kSecondsMax = std::uint64_t{100} * 366 * 86400;

// A whole number from 1 and what follows it.
std::optional<std::pair<std::uint64_t, std::string_view>> Split(std::string_view text) {
  const auto leading = ParseLeadingNumber<std::uint64_t>(text);
  if (!leading || leading->number == 0) return std::nullopt;
  return std::pair(leading->number, leading->rest);
}

std::optional<std::uint64_t> ParseSeconds(std::string_view text) {
  const auto split = Split(text);
  if (!split) return std::nullopt;
  for (const Unit& unit : kTimes) {
    if (split->second == unit.name && split->first <= kSecondsMax / unit.factor)
      return split->first * unit.factor;
  }
  return std::nullopt;
}

Status Wrong(const std::string& flag, const std::string& text, const char* expected) {
  return {Code::kInvalidArgument, flag + ": found '" + Printable(text) + "'; expected " + expected};
}

}  // namespace

Result<std::chrono::seconds> ParseDuration(const std::string& flag, const std::string& text) {
  if (text == "off") return std::chrono::seconds(0);
  const auto seconds = ParseSeconds(text);
  if (!seconds) return Wrong(flag, text, "a number of s, min, h, d or w, such as 30d, or off");
  return std::chrono::seconds(*seconds);
}

Result<std::uint64_t> ParseSize(const std::string& flag, const std::string& text,
                                std::uint64_t when_off) {
  if (text == "off") return when_off;
  const auto bytes = ParseByteSize(text);
  if (!bytes) return Wrong(flag, text, "a number of MiB, GiB or TiB such as 64GiB, or off");
  return *bytes;
}

Result<DiskLimit> ParseDiskLimit(const std::string& flag, const std::string& text) {
  if (text == "off") return DiskLimit{};
  if (const auto split = Split(text); split && split->second == "%" && split->first <= 100)
    return DiskLimit{.bytes = 0, .percent = static_cast<unsigned>(split->first)};
  const auto bytes = ParseByteSize(text);
  if (!bytes)
    return Wrong(flag, text,
                 "a number of MiB, GiB or TiB such as 200GiB, a share such as 80%, or off");
  return DiskLimit{.bytes = *bytes, .percent = 0};
}

}  // namespace statcollect
