#include "server/runtime/units.h"

#include <charconv>
#include <limits>
#include <optional>
#include <string_view>
#include <utility>

#include "common/names.h"

namespace statcollect {
namespace {

struct Unit {
  std::string_view name;
  std::uint64_t factor;
};

constexpr Unit kTimes[] = {{"s", 1}, {"min", 60}, {"h", 3600}, {"d", 86400}, {"w", 7 * 86400}};
constexpr Unit kSizes[] = {
    {"MiB", std::uint64_t{1} << 20}, {"GiB", std::uint64_t{1} << 30}, {"TiB", std::uint64_t{1} << 40}};
constexpr std::uint64_t kSecondsMax = std::uint64_t{100} * 366 * 86400;
constexpr std::uint64_t kBytesMax = std::uint64_t{1} << 60;

// A whole number from 1 and what follows it.
std::optional<std::pair<std::uint64_t, std::string_view>> Split(std::string_view text) {
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || number == 0) return std::nullopt;
  return std::pair(number, text.substr(static_cast<std::size_t>(end - text.data())));
}

template <std::size_t N>
std::optional<std::uint64_t> Parse(std::string_view text, const Unit (&units)[N], std::uint64_t max) {
  const auto split = Split(text);
  if (!split) return std::nullopt;
  for (const Unit& unit : units) {
    if (split->second == unit.name && split->first <= max / unit.factor) return split->first * unit.factor;
  }
  return std::nullopt;
}

Status Wrong(const std::string& flag, const std::string& text, const char* expected) {
  return {Code::kInvalidArgument, flag + ": found '" + Printable(text) + "'; expected " + expected};
}

}  // namespace

Result<std::chrono::seconds> ParseDuration(const std::string& flag, const std::string& text) {
  if (text == "off") return std::chrono::seconds(0);
  const auto seconds = Parse(text, kTimes, kSecondsMax);
  if (!seconds) return Wrong(flag, text, "a number of s, min, h, d or w, such as 30d, or off");
  return std::chrono::seconds(*seconds);
}

Result<DiskLimit> ParseDiskLimit(const std::string& flag, const std::string& text) {
  if (text == "off") return DiskLimit{};
  if (const auto split = Split(text); split && split->second == "%" && split->first <= 100)
    return DiskLimit{.bytes = 0, .percent = static_cast<unsigned>(split->first)};
  const auto bytes = Parse(text, kSizes, kBytesMax);
  if (!bytes)
    return Wrong(flag, text, "a number of MiB, GiB or TiB such as 200GiB, a share such as 80%, or off");
  return DiskLimit{.bytes = *bytes, .percent = 0};
}

}  // namespace statcollect
