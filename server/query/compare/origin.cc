#include "server/query/compare/origin.h"

#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "common/names.h"

namespace statcollect::query {
namespace {

// One forward pass (micro-batch and mode) of a rank while its tensors are walked in the order of
// execution. Knows, for each module, what has been seen and what has diverged at and below it.
class PassTree {
 public:
  explicit PassTree(std::string_view root) : root_(root) {}

  // Whether something that this tensor was computed from has diverged. To be asked before Add.
  bool Inherits(const TensorKey& key) {
    const std::string_view path = PathOf(key.name);
    const Node& own = nodes_[path];
    if (key.kind != Kind::kInput) {
      // Another output or call of the module: one mistake, one origin.
      if (own.below_diverged || own.outputs_diverged) return true;
      const auto inputs = inputs_.find({path, key.call});
      if (inputs != inputs_.end()) return inputs->second;
    }
    return InheritsFromBefore(path);
  }

  void Add(const TensorKey& key, bool diverged) {
    std::string_view path = PathOf(key.name);
    if (key.kind == Kind::kInput) {
      inputs_[{path, key.call}] |= diverged;
      nodes_[path].inputs_seen = true;
      nodes_[path].inputs_diverged |= diverged;
    } else {
      nodes_[path].outputs_diverged |= diverged;
    }
    for (bool self = true;; self = false) {
      Node& node = nodes_[path];
      if (!self) node.below_diverged |= diverged;
      const bool seen_now = !std::exchange(node.seen, true);
      const bool diverged_now = diverged && !std::exchange(node.diverged, true);
      if (path.empty()) return;
      path = Parent(path);
      nodes_[path].children_seen += seen_now ? 1 : 0;
      nodes_[path].children_diverged += diverged_now ? 1 : 0;
    }
  }

 private:
  struct Node {
    bool seen = false, diverged = false;  // at or below
    bool below_diverged = false;
    bool outputs_diverged = false;
    bool inputs_seen = false, inputs_diverged = false;
    std::size_t children_seen = 0, children_diverged = 0;
  };

  // "blocks.1.ln2" -> "blocks.1" -> "blocks" -> "", the outermost module.
  static std::string_view Parent(std::string_view path) {
    const std::size_t dot = path.rfind('.');
    return dot == std::string_view::npos ? std::string_view() : path.substr(0, dot);
  }
  std::string_view PathOf(std::string_view name) const {
    return name == root_ ? std::string_view() : name;
  }

  // The nearest enclosing module in which something else ran before, or whose own inputs were
  // recorded.
  bool InheritsFromBefore(std::string_view path) {
    while (!path.empty()) {
      const std::string_view parent = Parent(path);
      const Node& own = nodes_[path];
      const Node& around = nodes_[parent];
      const std::size_t seen = around.children_seen - (own.seen ? 1 : 0);
      if (seen > 0 || around.inputs_seen) {
        return around.children_diverged > (own.diverged ? 1u : 0u) || around.inputs_diverged;
      }
      path = parent;
    }
    return false;
  }

  std::string_view root_;
  std::unordered_map<std::string_view, Node> nodes_;
  std::map<std::pair<std::string_view, std::uint32_t>, bool>
      inputs_;  // of a call: whether any diverged
};

// Identity of a row's tensor within a step.
using RowIdentity = std::tuple<std::uint32_t, Kind, std::string_view, std::string_view,
                               std::uint32_t, std::uint32_t, std::string_view>;

RowIdentity IdentityOf(std::uint32_t rank, const TensorKey& key) {
  return {rank, key.kind, key.name, key.output_path, key.micro_batch, key.call, Name(key.mode)};
}
RowIdentity IdentityOf(const Divergence& row) {
  return {row.rank, row.kind, row.activation, row.output_path, row.micro_batch, row.call, row.mode};
}

// The diverged forward tensors that nothing before them in their pass explains.
std::set<RowIdentity> ForwardOrigins(const std::vector<ForwardTrace>& traces) {
  std::set<RowIdentity> origins;
  for (const ForwardTrace& trace : traces) {
    std::map<std::pair<std::uint32_t, Mode>, PassTree> passes;
    for (const ForwardPoint& point : trace.points) {
      PassTree& pass =
          passes.try_emplace({point.key->micro_batch, point.key->mode}, trace.root).first->second;
      if (point.diverged && !pass.Inherits(*point.key))
        origins.insert(IdentityOf(trace.rank, *point.key));
      pass.Add(*point.key, point.diverged);
    }
  }
  return origins;
}

// Tracks what has diverged so far in the step, in report order.
class StepState {
 public:
  explicit StepState(const std::vector<ForwardTrace>& traces)
      : forward_origins_(ForwardOrigins(traces)) {
    for (const ForwardTrace& trace : traces) {
      for (const ForwardPoint& point : trace.points) {
        if (point.key->mode == Mode::kTrain) passes_.insert({trace.rank, point.key->micro_batch});
      }
    }
  }

  bool IsOrigin(const Divergence& row) const {
    if (segment_ && *segment_ < row.segment) return false;
    const bool fresh = !begun_.contains({row.rank, row.stage});
    switch (row.stage) {
      case Stage::kWeights:
        return true;
      case Stage::kBatch:  // behind forward records only where models feed each other
        return !forward_ranks_.contains(row.rank);
      case Stage::kForward:
        return !inputs_ && !(row.mode == Name(Mode::kEval) && training_) &&
               forward_origins_.contains(IdentityOf(row));
      case Stage::kLoss:
      case Stage::kBackward:
        return !inputs_ && fresh && !forward_ranks_.contains(row.rank);
      case Stage::kGrad:  // summed over ranks
        return !inputs_ && !compute_ && fresh;
      default:
        return !inputs_ && !compute_ && !grads_ && fresh &&
               !grads_missing_.contains({row.rank, row.activation});
    }
  }
  // A missing record does not explain values, because it may just not have been recorded. There are
  // two exceptions: a training pass that only one run made, and a gradient that only one run has.
  void AddStructural(const Divergence& row) {
    if (row.stage == Stage::kGrad) grads_missing_.insert({row.rank, row.activation});
    if (row.stage != Stage::kForward || row.mode != Name(Mode::kTrain)) return;
    if (passes_.contains({row.rank, row.micro_batch})) return;
    compute_ = training_ = true;
    forward_ranks_.insert(row.rank);
  }

  void Add(const Divergence& row) {
    if (!segment_) segment_ = row.segment;
    begun_.insert({row.rank, row.stage});
    inputs_ |= row.stage <= Stage::kBatch;
    grads_ |= row.stage == Stage::kGrad;
    if (row.stage < Stage::kForward || row.stage > Stage::kBackward) return;
    compute_ = true;
    training_ |= row.mode != Name(Mode::kEval);
    if (row.stage != Stage::kBackward) forward_ranks_.insert(row.rank);
  }

 private:
  const std::set<RowIdentity> forward_origins_;
  std::set<std::pair<std::uint32_t, std::uint32_t>>
      passes_;  // rank and micro-batch of what both runs ran
  std::optional<std::uint32_t>
      segment_;            // the first with a divergence: its update carries it into the later ones
  bool inputs_ = false;    // weights or batch, on any rank
  bool compute_ = false;   // forward, loss or backward, on any rank
  bool training_ = false;  // the same, not in evaluation
  bool grads_ = false;
  std::set<std::uint32_t> forward_ranks_;  // with a divergence in forward or loss
  std::set<std::pair<std::uint32_t, std::string>> grads_missing_;  // rank and weight
  std::set<std::pair<std::uint32_t, Stage>> begun_;
};

}  // namespace

bool IsStructural(const Divergence& row) {
  return row.reason == Reason::kMissingInA || row.reason == Reason::kMissingInB ||
         (row.reason == Reason::kOrder && !row.distance);
}

void MarkOrigins(std::span<Divergence* const> rows, const std::vector<ForwardTrace>& traces) {
  StepState state(traces);
  for (Divergence* const row : rows) {
    if (IsStructural(*row)) {
      state.AddStructural(*row);
      continue;
    }
    row->origin = state.IsOrigin(*row);
    state.Add(*row);
  }
}

}  // namespace statcollect::query
