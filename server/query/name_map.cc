#include "server/query/name_map.h"

#include <array>
#include <utility>

#include <re2/re2.h>

#include "common/names.h"

namespace statcollect::query {

struct NameMap::Rule {
  explicit Rule(const std::string& pattern) : first(pattern, RE2::Quiet) {}
  RE2 first;
  std::vector<std::string> more_a, b;  // rewritten with the groups of `first`
};

namespace {

constexpr std::size_t kBytesMax = std::size_t{1} << 20;
constexpr std::size_t kRulesMax = 10'000;
constexpr std::size_t kShownBytesMax = 200;
constexpr int kGroupsMax = 9;
constexpr char kExpected[] =
    "; expected PATTERN -> NAME, for example transformer\\.h\\.(\\d+)\\.(.*) -> blocks.\\1.\\2";

std::string_view Trimmed(std::string_view text) {
  const auto first = text.find_first_not_of(" \t\r");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t\r") - first + 1);
}

// By commas outside of brackets and braces, which regular expressions use: "a{1,2}, b" has two parts.
std::vector<std::string> SplitNames(std::string_view text) {
  std::vector<std::string> parts(1);
  int depth = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '\\' && i + 1 < text.size()) {
      parts.back().append(text.substr(i++, 2));
      continue;
    }
    depth += c == '{' || c == '[' || c == '(' ? 1 : c == '}' || c == ']' || c == ')' ? -1 : 0;
    if (c == ',' && depth <= 0) {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  for (std::string& part : parts) part = std::string(Trimmed(part));
  return parts;
}

Status BadLine(std::size_t number, std::string_view line, const std::string& found) {
  return {Code::kInvalidArgument, "map line " + std::to_string(number) + " '" +
                                      Printable(line, kShownBytesMax) + "': " + found + kExpected};
}

}  // namespace

Result<NameMap> NameMap::Parse(std::string_view text) {
  if (text.size() > kBytesMax) {
    return Status(Code::kInvalidArgument, "map: found " + std::to_string(text.size()) +
                                              " bytes; expected at most " + std::to_string(kBytesMax));
  }
  NameMap map;
  std::size_t number = 0;
  while (!text.empty()) {
    const std::string_view line = Trimmed(text.substr(0, text.find('\n')));
    text.remove_prefix(
        std::min(text.size(), text.find('\n') == std::string_view::npos ? text.size() : text.find('\n') + 1));
    ++number;
    if (line.empty() || line.front() == '#') continue;
    const std::size_t arrow = line.find("->");
    if (arrow == std::string_view::npos) return BadLine(number, line, "found no '->'");
    std::vector<std::string> a = SplitNames(line.substr(0, arrow)), b = SplitNames(line.substr(arrow + 2));
    for (const auto* side : {&a, &b}) {
      for (const std::string& name : *side) {
        if (name.empty()) return BadLine(number, line, "found an empty name");
      }
    }
    auto rule = std::make_shared<Rule>(a.front());
    if (!rule->first.ok())
      return BadLine(number, line,
                     "'" + Printable(a.front(), kShownBytesMax) + "' is no pattern: " + rule->first.error());
    rule->more_a.assign(std::make_move_iterator(a.begin() + 1), std::make_move_iterator(a.end()));
    rule->b = std::move(b);
    for (const auto* side : {&rule->more_a, &rule->b}) {
      for (const std::string& name : *side) {
        std::string error;
        if (!rule->first.CheckRewriteString(name, &error)) return BadLine(number, line, error);
      }
    }
    if (map.rules_.size() == kRulesMax)
      return BadLine(number, line, "found more than " + std::to_string(kRulesMax) + " rules");
    map.rules_.push_back(std::move(rule));
  }
  return map;
}

std::optional<NameMap::Names> NameMap::Find(const std::string& name_a) const {
  std::array<re2::StringPiece, kGroupsMax + 1> groups;
  for (const auto& rule : rules_) {
    const int count = std::min(rule->first.NumberOfCapturingGroups(), kGroupsMax) + 1;
    if (!rule->first.Match(name_a, 0, name_a.size(), RE2::ANCHOR_BOTH, groups.data(), count)) continue;
    const auto rewritten = [&](const std::string& name) {
      std::string out;
      (void)rule->first.Rewrite(&out, name, groups.data(), count);  // checked when parsed
      return out;
    };
    Names names;
    names.a.push_back(name_a);
    for (const std::string& name : rule->more_a) names.a.push_back(rewritten(name));
    for (const std::string& name : rule->b) names.b.push_back(rewritten(name));
    return names;
  }
  return std::nullopt;
}

}  // namespace statcollect::query
