#include "common/rank_set.h"

#include <algorithm>

#include "common/names.h"
#include "common/parse.h"
#include "common/text.h"

namespace statcollect {
namespace {

constexpr std::string_view kBlanksOfRanks = " \t\r\n\v\f";

Status RefuseRanks(std::string_view text, std::string_view part, const std::string& found) {
  return {
      Code::kInvalidArgument,
      "read ranks '" + Printable(text) + "': part '" + Printable(part) + "' " + found +
          "; expected ranks N and closed ranges N-M, separated by ','; write for example 0,8-15"};
}

}  // namespace

Result<RankSet> RankSet::Parse(std::string_view text, std::uint32_t world_size) {
  RankSet set;
  set.world_size_ = world_size;
  if (text.empty()) {
    if (world_size > 0) set.ranges_.emplace_back(0, world_size - 1);
    return set;
  }
  for (std::string_view rest = text;;) {
    const std::size_t end = rest.find(',');
    const std::string_view part = Trimmed(rest.substr(0, end), kBlanksOfRanks);
    const std::size_t dash = part.find('-');
    const auto first = ParseNumber<std::uint32_t>(part.substr(0, dash));
    const auto last =
        dash == std::string_view::npos ? first : ParseNumber<std::uint32_t>(part.substr(dash + 1));
    if (!first || !last)
      return RefuseRanks(text, part,
                         part.empty() ? "is empty" : "is neither a rank nor a closed range");
    if (*last < *first) return RefuseRanks(text, part, "ends before it begins");
    if (*last >= world_size) {
      return RefuseRanks(text, part,
                         "is beyond the last rank, " + std::to_string(world_size - 1) +
                             " of a world of " + std::to_string(world_size));
    }
    set.ranges_.emplace_back(*first, *last);
    if (end == std::string_view::npos) break;
    rest.remove_prefix(end + 1);
  }
  set.Merge();
  return set;
}

bool RankSet::Contains(std::uint32_t rank) const {
  return std::any_of(ranges_.begin(), ranges_.end(), [rank](const Range& range) {
    return range.first <= rank && rank <= range.second;
  });
}

std::uint32_t RankSet::count() const { return CountBelow(world_size_); }

std::uint32_t RankSet::CountBelow(std::uint32_t rank) const {
  std::uint32_t count = 0;
  for (const auto& [first, last] : ranges_) {
    if (first < rank) count += std::min(last, rank - 1) - first + 1;
  }
  return count;
}

std::string RankSet::Text() const {
  if (count() == world_size_) return "";
  std::string text;
  for (const auto& [first, last] : ranges_) {
    text += (text.empty() ? "" : ",") + std::to_string(first);
    if (last > first) text += "-" + std::to_string(last);
  }
  return text;
}

void RankSet::Add(const RankSet& other) {
  world_size_ = std::max(world_size_, other.world_size_);
  ranges_.insert(ranges_.end(), other.ranges_.begin(), other.ranges_.end());
  Merge();
}

void RankSet::Merge() {
  std::sort(ranges_.begin(), ranges_.end());
  std::vector<Range> merged;
  for (const Range& range : ranges_) {
    if (!merged.empty() &&
        range.first <= merged.back().second + 1) {  // a rank is below the world size
      merged.back().second = std::max(merged.back().second, range.second);
    } else {
      merged.push_back(range);
    }
  }
  ranges_ = std::move(merged);
}

}  // namespace statcollect
