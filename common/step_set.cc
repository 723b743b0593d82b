#include "common/step_set.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "common/names.h"
#include "common/parse.h"
#include "common/saturating.h"
#include "common/text.h"

namespace statcollect {
namespace {

constexpr std::string_view kEvery = "every=";
constexpr std::string_view kSpace = " \t\r\n\v\f";

Status Refuse(std::string_view text, std::string_view part, const std::string& found) {
  return {Code::kInvalidArgument,
          "read steps '" + Printable(text) + "': part '" + Printable(part) + "' " + found +
              "; expected steps N, closed ranges N-M, open ranges N- and every=N (N "
              ">= 1), separated by ',' or '|'; "
              "write for example 0-9,20,100- or 0-99,every=10"};
}

// "N", "N-M" or "N-".
std::optional<std::pair<std::uint64_t, std::uint64_t>> ParseRange(std::string_view part) {
  const std::size_t dash = part.find('-');
  const auto first = ParseNumber<std::uint64_t>(part.substr(0, dash));
  if (!first) return std::nullopt;
  if (dash == std::string_view::npos) return std::pair(*first, *first);
  if (dash + 1 == part.size()) return std::pair(*first, StepSet::kLastStep);
  const auto last = ParseNumber<std::uint64_t>(part.substr(dash + 1));
  if (!last) return std::nullopt;
  return std::pair(*first, *last);
}

}  // namespace

Result<StepSet> StepSet::Parse(std::string_view text) {
  StepSet set;
  if (Trimmed(text, kSpace).empty()) return set;
  std::vector<Range> ranges;
  bool thinned = false;
  for (std::string_view rest = text;;) {
    const std::size_t end = rest.find_first_of(",|");
    const std::string_view part = Trimmed(rest.substr(0, end), kSpace);
    if (part.substr(0, kEvery.size()) == kEvery) {
      const auto every = ParseNumber<std::uint64_t>(part.substr(kEvery.size()));
      if (!every || *every == 0)
        return Refuse(text, part, "is not every=N with N from 1 to 2^64-1");
      if (thinned) return Refuse(text, part, "is a second every=");
      set.every_ = *every;
      thinned = true;
    } else {
      const auto range = ParseRange(part);
      if (!range)
        return Refuse(text, part, part.empty() ? "is empty" : "is neither a step nor a range");
      if (range->second < range->first) return Refuse(text, part, "ends before it begins");
      ranges.push_back({range->first, range->second});
    }
    if (end == std::string_view::npos) break;
    rest.remove_prefix(end + 1);
  }
  if (!ranges.empty()) set.ranges_ = Merged(std::move(ranges));
  return set;
}

const StepSet::Range& StepSet::RangeUpTo(std::uint64_t step) const {
  const auto next =
      std::upper_bound(ranges_.begin(), ranges_.end(), step,
                       [](std::uint64_t at, const Range& range) { return at < range.first; });
  return next == ranges_.begin() ? *next : *(next - 1);
}

std::optional<std::uint64_t> StepSet::AtOrAfter(std::uint64_t step) const {
  auto range = std::lower_bound(ranges_.begin(), ranges_.end(), step,
                                [](const Range& each, std::uint64_t at) { return each.last < at; });
  while (range != ranges_.end()) {
    const std::uint64_t from = std::max(step, range->first);
    const std::uint64_t missing = from % every_ == 0 ? 0 : every_ - from % every_;
    if (missing <= range->last - from) return from + missing;
    if (missing > kLastStep - from) return std::nullopt;
    // The next ranges may be as short: go on where the multiple is.
    range = std::lower_bound(range + 1, ranges_.end(), from + missing,
                             [](const Range& each, std::uint64_t at) { return each.last < at; });
    step = from + missing;
  }
  return std::nullopt;
}

std::vector<StepSet::Range> StepSet::Merged(std::vector<Range> ranges) {
  std::sort(ranges.begin(), ranges.end(),
            [](const Range& a, const Range& b) { return a.first < b.first; });
  std::vector<Range> merged;
  for (const Range& range : ranges) {
    // Adjacent ranges join as well.
    const bool joins = !merged.empty() && range.first <= SaturatingAdd(merged.back().last, 1);
    if (joins) {
      merged.back().last = std::max(merged.back().last, range.last);
    } else {
      merged.push_back(range);
    }
  }
  return merged;
}

}  // namespace statcollect
