#include "server/query/settings/full_steps.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "common/parse.h"
#include "server/query/settings/dotted.h"

namespace statcollect::query {
namespace {

constexpr char kKey[] = "recording.full_steps";
constexpr std::size_t kPartsMax = 6;

// The next equidistant steps: at least three, or consecutive ones; else one.
std::size_t RunFrom(const std::vector<std::uint64_t>& steps, std::size_t at) {
  if (at + 1 == steps.size()) return 1;
  const std::uint64_t distance = steps[at + 1] - steps[at];
  std::size_t end = at + 2;
  while (end < steps.size() && steps[end] - steps[end - 1] == distance) ++end;
  const bool multiples = steps[at] % distance == 0;
  return distance == 1 || (end - at >= 3 && multiples) ? end - at : 1;
}

std::string RunText(std::uint64_t first, std::uint64_t last, std::size_t count) {
  if (count == 1) return std::to_string(first);
  const std::string range = std::to_string(first) + ".." + std::to_string(last);
  const std::uint64_t distance = (last - first) / (count - 1);
  return distance == 1 ? range : "multiples of " + std::to_string(distance) + " in " + range;
}

}  // namespace

std::optional<RecordedInFull> RecordedInFull::Of(const Config& config) {
  const auto found = config.find(kKey);
  if (found == config.end()) return std::nullopt;
  RecordedInFull full;
  for (const std::string_view part : ItemsOf(found->second)) {
    const std::size_t dash = part.find('-'), slash = part.find('/');
    if (dash == std::string_view::npos || slash == std::string_view::npos || slash < dash)
      return std::nullopt;
    const auto first = ParseNumber<std::uint64_t>(part.substr(0, dash));
    const std::string_view until = part.substr(dash + 1, slash - dash - 1);
    const auto last =
        until.empty() ? std::optional(~std::uint64_t{0}) : ParseNumber<std::uint64_t>(until);
    const auto every = ParseNumber<std::uint64_t>(part.substr(slash + 1));
    if (!first || !last || !every || *every == 0) return std::nullopt;
    full.ranges_.push_back({.first = *first, .last = *last, .every = *every});
  }
  return full.ranges_.empty() ? std::nullopt : std::optional(std::move(full));
}

bool RecordedInFull::Contains(std::uint64_t step) const {
  return std::any_of(ranges_.begin(), ranges_.end(), [step](const Range& range) {
    return step >= range.first && step <= range.last && step % range.every == 0;
  });
}

std::string DescribeSteps(const std::vector<std::uint64_t>& steps) {
  std::vector<std::string> parts;
  for (std::size_t at = 0; at < steps.size() && parts.size() <= kPartsMax;) {
    const std::size_t count = RunFrom(steps, at);
    parts.push_back(RunText(steps[at], steps[at + count - 1], count));
    at += count;
  }
  if (parts.size() > kPartsMax) parts.back() = "others";
  std::string text;
  for (std::size_t i = 0; i < parts.size(); ++i)
    text += (i == 0 ? "" : i + 1 == parts.size() ? " and " : ", ") + parts[i];
  return text;
}

}  // namespace statcollect::query
