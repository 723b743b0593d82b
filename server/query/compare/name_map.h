// The user's map from names of run A to names of run B.
#ifndef STATCOLLECT_SERVER_QUERY_COMPARE_NAME_MAP_H_
#define STATCOLLECT_SERVER_QUERY_COMPARE_NAME_MAP_H_

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "common/status.h"

namespace statcollect::query {

// One rule per line: `pattern -> name`. The pattern is a name of A, or a regular expression (RE2) that must
// match a whole name of A; `\1`..`\9` in the rest of the line are its groups. A pattern of only letters,
// digits, dots, `_`, `-` and `/` is a name. Several names on a side, separated by commas, are compared
// together: `(.*)\.q, \1.k, \1.v -> \1.qkv`; the first one is the pattern. Blank lines and lines that begin
// with # are ignored. The first matching rule applies. Immutable except for the marks of use; thread-safe.
class NameMap {
 public:
  // kInvalidArgument names the line, the error in it and what is expected. At most 1 MiB and 10,000 rules.
  static Result<NameMap> Parse(std::string_view text);

  struct Names {
    std::vector<std::string> a, b;  // never empty; a[0] is the requested name
    std::size_t rule = 0;
  };
  // Cost: one look-up, and one match per regular expression, linear in the name.
  std::optional<Names> Find(const std::string& name_a) const;

  // Marks a rule as used, because both runs have the names.
  void MarkUsed(const Names& names) const;
  // One sentence for each rule that had no effect, at most 10: its line, and whether no name of A matched or
  // B lacks the resulting names.
  std::vector<std::string> Unused(const std::string& run_a, const std::string& run_b) const;

 private:
  struct Rule;
  static std::string Compile(const std::string& pattern, Rule& rule);
  std::vector<std::shared_ptr<const Rule>> rules_;
  std::vector<std::size_t> patterns_;  // indexes of rules with regular expressions, ascending
  std::unordered_map<std::string, std::size_t> names_;  // indexes of rules with plain names
};

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_COMPARE_NAME_MAP_H_
