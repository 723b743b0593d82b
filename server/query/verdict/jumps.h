// Which differences stand out of what rounding explains. docs/verdict.md derives the rules.
#ifndef STATCOLLECT_SERVER_QUERY_VERDICT_JUMPS_H_
#define STATCOLLECT_SERVER_QUERY_VERDICT_JUMPS_H_

#include <cstddef>
#include <deque>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "common/records.h"
#include "server/query/verdict/explain.h"

namespace statcollect::query {

// One difference that its inputs and rounding do not explain. Logarithms are natural.
struct Jump {
  std::size_t index = 0;              // of the Explained
  double ratio = 0;                   // log(observed / expected)
  double usual = 0;                   // what its sisters and its own past show
  double excess = 0;                  // above `usual` and the threshold; > 0
  std::size_t sisters = 0, past = 0;  // how many it was compared with
};

// Of one rank. Steps must ascend; it remembers what each tensor showed in earlier steps. Not thread-safe.
class JumpFinder {
 public:
  // In the order of `step`. Weights as loaded and batches are never rounded differently: any difference of
  // theirs is a jump, but for one of rounding size in a weight.
  std::vector<Jump> Find(std::span<const Explained> step);

 private:
  using Identity = std::tuple<std::string_view, Kind, std::string_view, std::uint32_t, std::uint32_t, Mode>;
  struct Group {
    std::vector<double> fresh, inherited;  // ratios, sorted
  };
  using Groups = std::map<std::tuple<Kind, std::string, std::string_view, Mode>, Group>;

  Groups GroupSisters(std::span<const Explained> step) const;
  std::optional<Jump> Judge(const Explained& one, const Groups& groups) const;
  const std::string& Pattern(std::string_view name) const;

  std::map<Identity, std::deque<double>> past_;  // newest last
  mutable std::unordered_map<std::string_view, std::string> patterns_;
};

// log(observed / expected); -infinity if they are equal.
double RatioOf(const Explained& one);

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_VERDICT_JUMPS_H_
