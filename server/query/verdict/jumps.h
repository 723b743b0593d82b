// Which differences stand out of what rounding explains. docs/verdict.md derives the rules.
#ifndef STATCOLLECT_SERVER_QUERY_VERDICT_JUMPS_H_
#define STATCOLLECT_SERVER_QUERY_VERDICT_JUMPS_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "common/records.h"
#include "server/query/verdict/explain.h"

namespace statcollect::query {

// Why a difference is taken for a jump.
enum class JumpKind : std::uint8_t {
  kExcess,     // more than its inputs and rounding explain
  kInput,      // weights as loaded or a batch: nothing observed comes before them
  kUnchanged,  // nothing before it differs, and where the same kernel ran on equal inputs it gave equal bits
  kOutlier,    // among gradients of parameters that nothing before explains
  kScale,      // all gradients are the other run's times one factor
  kSetting,    // a recorded setting of the optimizer or of a module differs
};

// One difference that its inputs and rounding do not explain. Logarithms are natural.
struct Jump {
  std::size_t index = 0;  // of the Explained
  JumpKind kind = JumpKind::kExcess;
  double ratio = 0;                   // log(observed / expected)
  double usual = 0;                   // what its sisters and its own past show
  double excess = 0;                  // above `usual` and the threshold; > 0
  std::size_t sisters = 0, past = 0;  // how many it was compared with
  double factor = 1;                  // kScale
  bool of_outer = false;              // kSetting, of a module around the tensor's own
  bool stands_out = false;            // kSetting: the tensor would be a jump without it
};

// Of one rank. Steps must ascend; it remembers what each tensor showed in earlier steps. Not thread-safe.
class JumpFinder {
 public:
  // `identical_steps`: before the first one that is handed in; all of their records agreed bit for bit.
  explicit JumpFinder(std::uint64_t identical_steps) : identical_steps_(identical_steps) {}

  // In A's order of execution.
  std::vector<Jump> Find(std::span<const Explained> step);

 private:
  using Identity = std::tuple<std::string_view, Kind, std::string_view, std::uint32_t, std::uint32_t, Mode>;
  using Sisterhood = std::tuple<Kind, std::string_view, std::string_view, Mode, std::string_view>;
  struct Group {
    std::vector<double> fresh, inherited;  // ratios, sorted
    std::vector<const Layout*> identical;  // of those with equal bits
  };
  using Groups = std::map<Sisterhood, Group>;
  // Ratios of parameters' gradients that inherited a difference, sorted; "weight" with "weight".
  using Gradients = std::map<std::string_view, std::vector<double>>;

  Groups GroupSisters(std::span<const Explained> step);
  static Gradients GroupGradients(std::span<const Explained> step);
  Sisterhood SistersOf(const TensorDef& def);
  std::string_view Pattern(std::string_view name);
  std::optional<Jump> Judge(const Explained& one, const Groups& groups, const Gradients& gradients);
  std::optional<Jump> JudgeFirst(const Explained& one, const Groups& groups);
  void Remember(std::span<const Explained> step);

  const std::uint64_t identical_steps_;
  bool any_difference_ = false;                  // in an earlier step
  std::map<Identity, std::deque<double>> past_;  // ratios, newest last
  std::unordered_map<std::string_view, std::string> patterns_;
};

// log(observed / expected); -infinity if they are equal, infinity if they cannot be measured.
double RatioOf(const Explained& one);

// Gradients of a step that are all the other run's times one factor; rounding has no direction.
std::optional<Jump> FindScale(std::span<const Explained> step);

// Gradients of parameters that stand out among those that nothing before explains.
std::vector<Jump> FindOutliers(std::span<const Explained> step);

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_VERDICT_JUMPS_H_
