#include "client/commands/selection.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "common/choice.h"
#include "common/names.h"
#include "common/parse.h"
#include "common/step_set.h"

namespace statcollect::client {
namespace {

constexpr std::uint32_t kRanksMax = 1u << 20;

// "4-7" or "4".
std::optional<std::pair<std::uint32_t, std::uint32_t>> ParseRange(std::string_view part) {
  const std::size_t dash = part.find('-');
  const auto first = ParseNumber<std::uint32_t>(part.substr(0, dash));
  const auto last =
      dash == std::string_view::npos ? first : ParseNumber<std::uint32_t>(part.substr(dash + 1));
  if (!first || !last || *first > *last || *last >= kRanksMax) return std::nullopt;
  return std::pair(*first, *last);
}

std::vector<std::string> KnownKinds() {
  std::vector<std::string> known;
  for (int kind = 1; kind < kKindCount; ++kind) known.emplace_back(Name(static_cast<Kind>(kind)));
  return known;
}

}  // namespace

std::vector<std::string> SplitCommas(std::string_view text) {
  std::vector<std::string> parts;
  while (!text.empty()) {
    const std::size_t comma = text.find(',');
    parts.emplace_back(text.substr(0, comma));
    if (comma == std::string_view::npos) return parts;
    text.remove_prefix(comma + 1);
    if (text.empty()) parts.emplace_back();
  }
  return parts;
}

Result<std::vector<std::uint32_t>> ParseRanks(const std::string& text) {
  std::vector<std::uint32_t> ranks;
  for (const std::string& part : SplitCommas(text)) {
    const auto range = ParseRange(part);
    if (!range) {
      return Status(Code::kInvalidArgument,
                    "--rank: expected numbers such as 0,1,4-7, found '" + Printable(part) + "'");
    }
    for (std::uint32_t rank = range->first; rank <= range->second; ++rank) ranks.push_back(rank);
  }
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  return ranks;
}

Result<std::vector<v1::Kind>> ParseKinds(const std::string& text) {
  std::vector<v1::Kind> kinds;
  for (const std::string& part : SplitCommas(text)) {
    const auto kind = ParseKind(part);
    if (!kind) return Status(Code::kInvalidArgument, NotOneOf(part, KnownKinds()));
    kinds.push_back(static_cast<v1::Kind>(*kind));
  }
  return kinds;
}

Result<v1::Kind> ParseOneKind(const std::string& text) {
  if (text.empty()) return v1::KIND_UNSPECIFIED;
  const auto kinds = ParseKinds(text);
  if (!kinds.ok()) return kinds.status();
  if (kinds->size() != 1)
    return Status(Code::kInvalidArgument,
                  "found several kinds, '" + Printable(text) + "'; expected one");
  return kinds->front();
}

Status CheckSteps(const std::string& text) {
  const auto parsed = StepSet::Parse(text);
  if (parsed.ok()) return Status::Ok();
  return {parsed.status().code(), "--step: " + parsed.status().message()};
}

}  // namespace statcollect::client
