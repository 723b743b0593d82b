#include "server/query/compare/name_map.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cctype>
#include <mutex>
#include <set>
#include <utility>

#include <re2/re2.h>

#include "common/known_maps.h"
#include "common/names.h"
#include "common/text.h"

namespace statcollect::query {

struct NameMap::Rule {
  std::size_t line = 0;
  std::string text;
  mutable std::atomic<bool> matched{false}, used{false};  // by a name of A; by names of both runs
  std::unique_ptr<RE2> first;                             // null: a name
  std::string name;                                       // then this one
  std::vector<std::string> more_a,
      b;  // rewritten with the groups of `first`, if it has any; no b: left out
  NameRelation relation;
  mutable std::once_flag taken_once;
  mutable std::string taken;  // a name of B that another name of A had already; written once
};

namespace {

constexpr std::string_view kBlanks = " \t\r";

constexpr std::size_t kBytesMax = std::size_t{2} << 20;
constexpr std::size_t kPatternsMax = 1000;
constexpr std::int64_t kPatternBytesMax = std::int64_t{1} << 20;  // of one compiled
constexpr std::size_t kShownBytesMax = 200;
constexpr std::size_t kUnusedMax = 10;
constexpr int kGroupsMax = 9;
constexpr std::size_t kFitMax = 256;  // names with which built-in maps are tried
constexpr std::string_view kNothing = "-";
constexpr char kExpected[] =
    "; expected PATTERN -> NAME, for example transformer\\.h\\.(\\d+)\\.(.*) -> blocks.\\1.\\2";

// Splits at commas outside of brackets and braces, which regular expressions use: "a{1,2}, b" has
// two parts.
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

// Removes " [option, option]" from the end of a line. Returns what is wrong, or nothing.
std::string TakeOptions(std::string_view& right, NameRelation& relation) {
  const std::size_t open = right.rfind(" [");
  if (right.empty() || right.back() != ']' || open == std::string_view::npos) return "";
  for (const std::string& option : SplitNames(right.substr(open + 2, right.size() - open - 3))) {
    if (option == "any order") {
      relation.any_order = true;
    } else if (option == "sequence first") {
      relation.sequence_first = true;
    } else if (option == "padded") {
      relation.padded = true;
    } else {
      return "found the option '" + Printable(option, kShownBytesMax) +
             "'; expected any order, sequence first or padded";
    }
  }
  right = right.substr(0, open);
  return "";
}

Status BadLine(std::size_t number, std::string_view line, const std::string& found) {
  return {Code::kInvalidArgument, "map line " + std::to_string(number) + " '" +
                                      Printable(line, kShownBytesMax) + "': " + found + kExpected};
}

}  // namespace

bool IsPlainName(std::string_view name) {
  return std::all_of(name.begin(), name.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '.' || c == '_' || c == '-' || c == '/';
  });
}

Result<NameMap> NameMap::Parse(std::string_view text) {
  if (text.size() > kBytesMax) {
    return Status(Code::kInvalidArgument, "map: found " + std::to_string(text.size()) +
                                              " bytes; expected at most " +
                                              std::to_string(kBytesMax));
  }
  NameMap map;
  std::string known;
  if (LooksLikeKnownMap(Trimmed(text))) {
    map.known_ = Trimmed(text);
    STATCOLLECT_ASSIGN_OR_RETURN(known, KnownMap(map.known_));
    text = known;
  }
  std::size_t number = 0;
  while (!text.empty()) {
    std::string_view line = Trimmed(text.substr(0, text.find('\n')), kBlanks);
    text.remove_prefix(std::min(text.size(), text.find('\n') == std::string_view::npos
                                                 ? text.size()
                                                 : text.find('\n') + 1));
    ++number;
    if (const std::size_t comment = line.find(" #"); comment != std::string_view::npos)
      line = Trimmed(line.substr(0, comment), kBlanks);
    if (!line.empty() && line.front() != '#') STATCOLLECT_RETURN_IF_ERROR(map.Add(number, line));
  }
  return map;
}

Status NameMap::Add(std::size_t number, std::string_view line) {
  const std::size_t arrow = line.find("->");
  if (arrow == std::string_view::npos) return BadLine(number, line, "found no '->'");
  auto rule = std::make_shared<Rule>();
  rule->line = number;
  rule->text = Printable(line, kShownBytesMax);
  std::string_view right = line.substr(arrow + 2);
  if (const std::string wrong = TakeOptions(right, rule->relation); !wrong.empty())
    return BadLine(number, line, wrong);
  std::vector<std::string> a = SplitNames(line.substr(0, arrow)), b = SplitNames(right);
  for (const auto* side : {&a, &b}) {
    for (const std::string& name : *side) {
      if (name.empty()) return BadLine(number, line, "found an empty name");
    }
  }
  const bool skips_a = b.size() == 1 && b.front() == kNothing,
             skips_b = a.size() == 1 && a.front() == kNothing;
  if ((skips_a && a.size() > 1) || (skips_b && b.size() > 1) || (skips_a && skips_b))
    return BadLine(number, line,
                   "found '-' with several names; expected one pattern on the other side");
  if (skips_b) a.swap(b);
  rule->more_a.assign(std::make_move_iterator(a.begin() + 1), std::make_move_iterator(a.end()));
  if (!skips_a && !skips_b) rule->b = std::move(b);
  rule->name = a.front();
  if (!IsPlainName(a.front())) {
    if (const std::string wrong = Compile(a.front(), *rule); !wrong.empty())
      return BadLine(number, line, wrong);
  }
  if (skips_b) {
    skips_b_.push_back(rules_.size());
  } else if (rule->first == nullptr) {
    names_[a.front()].push_back(rules_.size());
  } else {
    patterns_.push_back(rules_.size());
  }
  if (patterns_.size() + skips_b_.size() > kPatternsMax)
    return BadLine(number, line,
                   "found more than " + std::to_string(kPatternsMax) + " regular expressions");
  rules_.push_back(std::move(rule));
  return Status::Ok();
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

NameMap::Names NameMap::Resolve(const Rule& rule, std::size_t index, const std::string& name_a) {
  Names names{.a = {name_a}, .b = rule.b, .rule = index, .relation = rule.relation};
  names.a.insert(names.a.end(), rule.more_a.begin(), rule.more_a.end());
  rule.matched.store(true, std::memory_order_relaxed);
  if (rule.first == nullptr) return names;
  std::array<re2::StringPiece, kGroupsMax + 1> groups;
  const int count = std::min(rule.first->NumberOfCapturingGroups(), kGroupsMax) + 1;
  (void)rule.first->Match(name_a, 0, name_a.size(), RE2::ANCHOR_BOTH, groups.data(), count);
  const auto rewrite = [&](std::string& name) {
    std::string out;
    (void)rule.first->Rewrite(&out, name, groups.data(), count);  // checked when parsed
    name = std::move(out);
  };
  for (std::size_t i = 1; i < names.a.size(); ++i) rewrite(names.a[i]);
  for (std::string& name : names.b) rewrite(name);
  return names;
}

std::optional<NameMap::Names> NameMap::Find(const std::string& name_a, std::size_t from) const {
  std::size_t literal = rules_.size();
  if (const auto found = names_.find(name_a); found != names_.end()) {
    const auto at = std::lower_bound(found->second.begin(), found->second.end(), from);
    if (at != found->second.end()) literal = *at;
  }
  for (auto at = std::lower_bound(patterns_.begin(), patterns_.end(), from);
       at != patterns_.end() && *at < literal; ++at) {
    if (RE2::FullMatch(name_a, *rules_[*at]->first)) return Resolve(*rules_[*at], *at, name_a);
  }
  if (literal == rules_.size()) return std::nullopt;
  return Resolve(*rules_[literal], literal, name_a);
}

bool NameMap::LeavesOut(const std::string& name_b) const {
  for (const std::size_t index : skips_b_) {
    const Rule& rule = *rules_[index];
    if (rule.first == nullptr ? rule.name != name_b : !RE2::FullMatch(name_b, *rule.first))
      continue;
    rule.used.store(true, std::memory_order_relaxed);
    return true;
  }
  return false;
}

void NameMap::MarkUsed(const Names& names) const {
  rules_[names.rule]->used.store(true, std::memory_order_relaxed);
}

void NameMap::MarkTaken(const Names& names, const std::string& taken) const {
  const Rule& rule = *rules_[names.rule];
  std::call_once(rule.taken_once, [&] { rule.taken = Printable(taken, kShownBytesMax); });
}

std::vector<std::string> NameMap::Unused(const std::string& run_a, const std::string& run_b) const {
  std::vector<std::string> sentences;
  if (!known_.empty()) {
    const bool any = std::any_of(rules_.begin(), rules_.end(),
                                 [](const auto& rule) { return rule->used && !rule->b.empty(); });
    if (!any) {
      sentences.push_back("map " + known_ +
                          " has no effect: it knows none of the names that only one of " + run_a +
                          " and " + run_b + " has; statctl map show " + known_ +
                          " prints what it knows, and statctl map propose finds pairs by value");
    }
    return sentences;
  }
  std::size_t more = 0;
  for (const auto& rule : rules_) {
    if (rule->used && rule->taken.empty()) continue;
    if (sentences.size() == kUnusedMax) {
      ++more;
      continue;
    }
    const bool of_b = std::any_of(skips_b_.begin(), skips_b_.end(),
                                  [&](std::size_t index) { return rules_[index] == rule; });
    std::string why = "no name of " + run_a + " that " + run_b + " lacks matches it";
    if (of_b) {
      why = "no name of " + run_b + " without a counterpart matches it";
    } else if (!rule->taken.empty()) {
      why = "'" + rule->taken + "' of " + run_b + " has been matched with another name of " + run_a;
    } else if (rule->matched) {
      why = "the names that it makes of those of " + run_a +
            " are missing, or already matched, in " + run_b;
    }
    sentences.push_back("map line " + std::to_string(rule->line) + " '" + rule->text +
                        (rule->used ? "' has effect only in part: " : "' has no effect: ") + why);
  }
  if (more > 0) sentences.push_back(std::to_string(more) + " more lines of the map have no effect");
  return sentences;
}

namespace {

// Whether a rule of the map has a counterpart for the name, with all that belongs to it.
bool Pairs(const NameMap& map, const std::string& name, const std::set<std::string>& only_a,
           const std::set<std::string>& only_b) {
  for (auto found = map.Find(name); found; found = map.Find(name, found->rule + 1)) {
    const auto all = [](const std::vector<std::string>& names, const std::set<std::string>& of) {
      return std::all_of(names.begin(), names.end(),
                         [&](const std::string& one) { return of.contains(one); });
    };
    if (!found->b.empty() && all(found->a, only_a) && all(found->b, only_b)) return true;
  }
  return false;
}

}  // namespace

std::string ProposeKnownMap(const std::vector<std::string>& only_a,
                            const std::vector<std::string>& only_b) {
  if (only_a.empty() || only_b.empty()) return "";
  const std::set<std::string> of_a(only_a.begin(), only_a.end()),
      of_b(only_b.begin(), only_b.end());
  const auto end = only_a.begin() + static_cast<std::ptrdiff_t>(std::min(only_a.size(), kFitMax));
  std::string best;
  std::ptrdiff_t most = 0;
  for (const std::string& known : KnownMapNames()) {
    const auto map = NameMap::Parse(known);
    if (!map.ok()) continue;
    const std::ptrdiff_t pairs = std::count_if(only_a.begin(), end, [&](const std::string& name) {
      return Pairs(*map, name, of_a, of_b);
    });
    if (pairs > most) {
      most = pairs;
      best = known;
    }
  }
  if (most == 0) return "";
  return "names differ as those of the built-in map " + best + ": --map " + best + " pairs " +
         std::to_string(most) + " of " + std::to_string(end - only_a.begin()) +
         " names that only one run has";
}

}  // namespace statcollect::query
