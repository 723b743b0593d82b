// A map from names of run A to names of run B: the user's or a built-in one.
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

// How the elements of A's tensors lie in those of B.
struct NameRelation {
  bool any_order = false;  // the same values, in another order: compared by statistics
  bool sequence_first =
      false;            // [sequence, batch, ...] in one run, [batch, sequence, ...] in the other
  bool padded = false;  // one run may have more rows at the end, all zero
  bool operator==(const NameRelation&) const = default;
};

// One rule per line: `pattern -> name`. The pattern is a name of A, or a regular expression (RE2)
// that must match a whole name of A; `\1`..`\9` in the rest of the line are its groups. A pattern
// of only letters, digits, dots, `_`, `-` and `/` is a name. Several names on a side, separated by
// commas, are compared together: `(.*)\.q, \1.k, \1.v -> \1.qkv`; the first one is the pattern.
// Blank lines, lines that begin with #, and the rest of a line behind " #" are ignored. The first
// matching rule applies whose names exist. `pattern -> -` leaves out names of A that have no
// counterpart, `- -> pattern` names of B. A line may end with options in brackets, separated by
// commas: `[any order]`, `[sequence first]`, `[padded]`; NameRelation says what they mean. The
// whole text may be the name of a built-in map instead: `hf:megatron` (common/known_maps.h).
// Immutable except for the marks of use; thread-safe.
class NameMap {
 public:
  // kInvalidArgument names the line, the error in it and what is expected. At most 2 MiB and 1,000
  // regular expressions.
  static Result<NameMap> Parse(std::string_view text);

  struct Names {
    std::vector<std::string> a, b;  // a[0] is the requested name; b is empty: it is left out
    std::size_t rule = 0;
    NameRelation relation;
  };
  // The first rule from number `from` on that matches. Cost: one look-up, and one match per regular
  // expression, linear in the name.
  std::optional<Names> Find(const std::string& name_a, std::size_t from = 0) const;
  // Whether a name of B may be without a counterpart.
  bool LeavesOut(const std::string& name_b) const;

  // Marks a rule as used, because both runs have the names.
  void MarkUsed(const Names& names) const;
  // Marks a rule whose name in B, `taken`, has been matched with another name of A.
  void MarkTaken(const Names& names, const std::string& taken) const;
  // One sentence for each rule that had no effect, at most 10: its line, and whether no name of A
  // matched or B lacks the resulting names. A built-in map has rules for many models: one sentence
  // if none of it had effect.
  std::vector<std::string> Unused(const std::string& run_a, const std::string& run_b) const;

 private:
  struct Rule;
  static std::string Compile(const std::string& pattern, Rule& rule);
  static Names Resolve(const Rule& rule, std::size_t index, const std::string& name_a);
  Status Add(std::size_t number, std::string_view line);
  std::string known_;  // the built-in map; empty: the user's own
  std::vector<std::shared_ptr<const Rule>> rules_;
  std::vector<std::size_t> patterns_;  // indexes of rules with regular expressions, ascending
  std::vector<std::size_t> skips_b_;   // indexes of rules that leave out names of B
  // Indexes of rules with plain names, ascending.
  std::unordered_map<std::string, std::vector<std::size_t>> names_;
};

// A sentence that proposes the built-in map that pairs most of the names that only one of two runs
// has. Empty: none pairs any. Looks at the first few hundred names of A.
std::string ProposeKnownMap(const std::vector<std::string>& only_a,
                            const std::vector<std::string>& only_b);

// Whether a rule means the name literally: letters, digits, '.', '_', '-' and '/'.
bool IsPlainName(std::string_view name);

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_COMPARE_NAME_MAP_H_
