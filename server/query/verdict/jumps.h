// Finds the differences that rounding does not explain. docs/verdict-model.md derives the rules.
#ifndef STATCOLLECT_SERVER_QUERY_VERDICT_JUMPS_H_
#define STATCOLLECT_SERVER_QUERY_VERDICT_JUMPS_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "common/records.h"
#include "server/query/verdict/explain.h"

namespace statcollect::query {

// Why a difference counts as a jump.
enum class JumpKind : std::uint8_t {
  kExcess,     // larger than its inputs and rounding explain
  kInput,      // loaded weights or a batch: nothing recorded precedes them
  kUnchanged,  // nothing before it differs, and the same kernel on equal inputs gave equal bits
               // elsewhere
  kSetting,    // a recorded setting of the optimizer or of a module differs
  kMeasured,   // larger than the noise of the run's twins explains
};

// One difference that its inputs and rounding do not explain. Logarithms are natural.
struct Jump {
  std::size_t index = 0;  // of the Explained
  JumpKind kind = JumpKind::kExcess;
  double ratio = 0;   // log(observed / expected)
  double usual = 0;   // the ratio usual for similar tensors and its own earlier steps
  double excess = 0;  // above `usual` plus the threshold; > 0
  std::size_t sisters = 0, past = 0;  // numbers of similar tensors and earlier steps compared with
  bool of_outer = false;              // kSetting: the setting belongs to an enclosing module
  bool stands_out = false;            // kSetting: the tensor would be a jump without the setting
  std::optional<Confidence> confidence;  // set if it was measured from twins
};

// What rounding explains of a step, and what it does not: measured from twins, or guessed by rules.
struct JudgedStep {
  std::vector<Explained> explained;  // one for each pair, in their order; points into the pairs
  std::vector<Jump> jumps;           // differences that are not explained; indices ascend
  // Outputs that differ far beyond the noise while the losses, gradients and updates of the step do
  // not: rows that nothing reads, such as padding under another attention. They are not among the
  // jumps. Indices.
  std::vector<std::size_t> without_effect;
  // SpreadName of tensors whose rows depend on the data, as far as known. Where noise is measured,
  // other rows are judged with the step. Valid until the next step is judged.
  const std::set<std::string>* data_dependent = nullptr;
  // Parameters whose gradient was zero except for rounding in some step so far. As long.
  const std::unordered_set<std::string_view>* noise_driven = nullptr;
};

// Finds the jumps of one rank. Steps must ascend; remembers the ratios of earlier steps. Not
// thread-safe.
class JumpFinder {
 public:
  // `identical_steps`: number of steps before the first one passed in, all of whose records are
  // equal bit for bit.
  explicit JumpFinder(std::uint64_t identical_steps) : identical_steps_(identical_steps) {}

  // In A's order of execution.
  std::vector<Jump> Find(std::span<const Explained> step);

 private:
  using Identity =
      std::tuple<std::string_view, Kind, std::string_view, std::uint32_t, std::uint32_t, Mode>;
  using Sisterhood = std::tuple<Kind, std::string_view, std::string_view, Mode, std::string_view>;
  struct Group {
    std::vector<double> fresh, inherited;  // ratios, sorted
    std::vector<const Layout*> identical;  // of those with equal bits
  };
  using Groups = std::map<Sisterhood, Group>;
  // Ratios of parameters' gradients that inherited a difference, sorted; by the parameter's last
  // name, such as "weight".
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

// The jump that is the root: the first one; among gradients, the one that changed the others
// through clipping. `jumps`: not empty, in order of execution.
std::size_t ChooseJump(std::span<const Explained> step, std::span<const Jump> jumps);

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_VERDICT_JUMPS_H_
