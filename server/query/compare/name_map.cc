#include "server/query/compare/name_map.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cctype>
#include <utility>

#include <re2/re2.h>

#include "common/names.h"
#include "common/text.h"

namespace statcollect::query {

struct NameMap::Rule {
  std::size_t line = 0;
  std::string text;
  mutable std::atomic<bool> matched{false}, used{false};  // by a name of A; by names of both runs
  std::unique_ptr<RE2> first;                             // null: a name
  std::vector<std::string> more_a, b;  // rewritten with the groups of `first`, if it has any
};

namespace {

constexpr std::string_view kBlanks = " \t\r";

constexpr std::size_t kBytesMax = std::size_t{1} << 20;
constexpr std::size_t kPatternsMax = 1000;
constexpr std::int64_t kPatternBytesMax = std::int64_t{1} << 20;  // of one compiled
constexpr std::size_t kShownBytesMax = 200;
constexpr std::size_t kUnusedMax = 10;
constexpr int kGroupsMax = 9;
constexpr char kExpected[] =
    "; expected PATTERN -> NAME, for example transformer\\.h\\.(\\d+)\\.(.*) -> blocks.\\1.\\2";

// Splits at commas outside of brackets and braces, which regular expressions use: "a{1,2}, b" has two parts.
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
  for (std::string& part : parts) part = std::string(Trimmed(part, kBlanks));
  return parts;
}

bool IsName(std::string_view pattern) {
  return std::all_of(pattern.begin(), pattern.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '.' || c == '_' || c == '-' || c == '/';
  });
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
    const std::string_view line = Trimmed(text.substr(0, text.find('\n')), kBlanks);
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
    auto rule = std::make_shared<Rule>();
    rule->line = number;
    rule->text = Printable(line, kShownBytesMax);
    rule->more_a.assign(std::make_move_iterator(a.begin() + 1), std::make_move_iterator(a.end()));
    rule->b = std::move(b);
    if (IsName(a.front())) {
      map.names_.try_emplace(a.front(), map.rules_.size());
    } else {
      if (const std::string wrong = Compile(a.front(), *rule); !wrong.empty())
        return BadLine(number, line, wrong);
      map.patterns_.push_back(map.rules_.size());
    }
    if (map.patterns_.size() > kPatternsMax)
      return BadLine(number, line,
                     "found more than " + std::to_string(kPatternsMax) + " regular expressions");
    map.rules_.push_back(std::move(rule));
  }
  return map;
}

// Empty, or what is wrong.
std::string NameMap::Compile(const std::string& pattern, Rule& rule) {
  RE2::Options options(RE2::Quiet);
  options.set_max_mem(kPatternBytesMax);
  rule.first = std::make_unique<RE2>(pattern, options);
  if (!rule.first->ok())
    return "'" + Printable(pattern, kShownBytesMax) + "' is not a pattern: " + rule.first->error();
  for (const auto* side : {&rule.more_a, &rule.b}) {
    for (const std::string& name : *side) {
      std::string error;
      if (!rule.first->CheckRewriteString(name, &error)) return error;
    }
  }
  return "";
}

std::optional<NameMap::Names> NameMap::Find(const std::string& name_a) const {
  const auto literal = names_.find(name_a);
  const std::size_t end = literal == names_.end() ? rules_.size() : literal->second;
  std::array<re2::StringPiece, kGroupsMax + 1> groups;
  for (const std::size_t index : patterns_) {
    if (index >= end) break;
    const Rule& rule = *rules_[index];
    const int count = std::min(rule.first->NumberOfCapturingGroups(), kGroupsMax) + 1;
    if (!rule.first->Match(name_a, 0, name_a.size(), RE2::ANCHOR_BOTH, groups.data(), count)) continue;
    const auto rewritten = [&](const std::string& name) {
      std::string out;
      (void)rule.first->Rewrite(&out, name, groups.data(), count);  // checked when parsed
      return out;
    };
    rule.matched.store(true, std::memory_order_relaxed);
    Names names;
    names.rule = index;
    names.a.push_back(name_a);
    for (const std::string& name : rule.more_a) names.a.push_back(rewritten(name));
    for (const std::string& name : rule.b) names.b.push_back(rewritten(name));
    return names;
  }
  if (literal == names_.end()) return std::nullopt;
  const Rule& rule = *rules_[literal->second];
  rule.matched.store(true, std::memory_order_relaxed);
  Names names{.a = {name_a}, .b = rule.b, .rule = literal->second};
  names.a.insert(names.a.end(), rule.more_a.begin(), rule.more_a.end());
  return names;
}

void NameMap::MarkUsed(const Names& names) const {
  rules_[names.rule]->used.store(true, std::memory_order_relaxed);
}

std::vector<std::string> NameMap::Unused(const std::string& run_a, const std::string& run_b) const {
  std::vector<std::string> sentences;
  std::size_t more = 0;
  for (const auto& rule : rules_) {
    if (rule->used) continue;
    if (sentences.size() == kUnusedMax) {
      ++more;
      continue;
    }
    sentences.push_back("map line " + std::to_string(rule->line) + " '" + rule->text + "' has no effect: " +
                        (rule->matched ? "the names that it makes of those of " + run_a +
                                             " are missing, or already "
                                             "matched, in " +
                                             run_b
                                       : "no name of " + run_a + " that " + run_b + " lacks matches it"));
  }
  if (more > 0) sentences.push_back(std::to_string(more) + " more lines of the map have no effect");
  return sentences;
}

}  // namespace statcollect::query
