// The user's word on which names of run B stand for which of run A.
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

// One rule a line: `pattern -> name`. The pattern is a name of A, or a regular expression (RE2) that must
// match a whole name of A; `\1`..`\9` in what follows are its groups. A pattern of letters, digits, dots,
// `_`, `-` and `/` alone is a name. Several names on a side, separated by commas, are compared together:
// `(.*)\.q, \1.k, \1.v -> \1.qkv`; the first is the pattern. Blank lines and lines that begin with # say
// nothing. The first rule that matches holds. Immutable but for the marks of use; thread-safe.
class NameMap {
 public:
  // kInvalidArgument names the line, what is wrong with it and what is expected. At most 1 MiB and 10,000
  // rules.
  static Result<NameMap> Parse(std::string_view text);

  struct Names {
    std::vector<std::string> a, b;  // neither empty; a[0] is the name asked for
    std::size_t rule = 0;
  };
  // Cost: one look-up, and one match of each regular expression, linear in the name.
  std::optional<Names> Find(const std::string& name_a) const;

  // Says that the names that Find gave are there in both runs.
  void MarkUsed(const Names& names) const;
  // One sentence for each rule that had no effect, at most 10: with its line, and whether no name of A
  // matched or B has none of the names that follow from it.
  std::vector<std::string> Unused(const std::string& run_a, const std::string& run_b) const;

 private:
  struct Rule;
  static std::string Compile(const std::string& pattern, Rule& rule);
  std::vector<std::shared_ptr<const Rule>> rules_;
  std::vector<std::size_t> patterns_;                   // rules with regular expressions, ascending
  std::unordered_map<std::string, std::size_t> names_;  // rules of one name each
};

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_COMPARE_NAME_MAP_H_
