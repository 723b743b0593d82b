// Computes how much of a difference is explained by its inputs and by rounding.
// docs/verdict-model.md derives the model.
#ifndef STATCOLLECT_SERVER_QUERY_VERDICT_EXPLAIN_H_
#define STATCOLLECT_SERVER_QUERY_VERDICT_EXPLAIN_H_

#include <algorithm>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "server/query/pairs/tensor_pair.h"
#include "server/query/reports.h"
#include "server/query/run_view.h"
#include "server/query/verdict/kernels.h"
#include "server/query/verdict/running_means.h"
#include "server/query/verdict/sum_lengths.h"

namespace statcollect::query {

// One difference and what explains it. All distances are relative L2.
struct Explained {
  const TensorPair* pair = nullptr;
  Stage stage = Stage::kUnspecified;
  double observed = 0;     // the distance judged: of a weight, that of its update
  double expected = 0;     // what the differences of its inputs and rounding cause; > 0
  double spread = 0;       // standard deviation of log(observed) due to the sketch
  double unit = 0;         // unit roundoff of the computation's dtype
  double rounding = 0;     // relative rounding of its own computation; at least `unit`
  bool cancelled = false;  // a sum far smaller than its terms; distances are relative to the terms
  bool fresh = false;      // none of its inputs differs
  bool of_loss = false;    // the first gradient: what the loss computes is not recorded
  bool fragile =
      false;  // its module's bias is noise-driven: outputs may differ a lot from one to the next
};

// What the recorded settings say about how both runs compute.
struct RecordedMethods {
  OtherConvolutions other_convolutions = OtherConvolutions::kNone;
  bool orthogonal_updates = false;  // UpdatesAreOrthogonal()
};

// What other ranks' records may inherit from a rank's in a step: reduced gradients are sums over
// ranks, and gathered weights have parts of all. By parameter, what differs only.
struct SharedLevels {
  using OfParameters = std::map<std::string, double, std::less<>>;
  OfParameters weights;    // distances of the weights that the step began with
  OfParameters gradients;  // what the rank itself gives reason to expect of a gradient
};

// Explains the tensors of one rank, step by step. Remembers the weights and the optimizer's state
// from step to step, so steps must ascend; after a gap, differences of parameters are explained
// less strictly. Not thread-safe. Cost: about 0.5 us a tensor; memory: names and two sketches a
// parameter.
class Explainer {
 public:
  explicit Explainer(const RecordedMethods& methods = {}) : methods_(methods) {}

  // `pairs`: all pairs of the step, in A's order of execution. The result has one entry for each,
  // in that order, and points into `pairs`. Their names must outlive the explainer. `others`: of
  // other ranks in the step.
  std::vector<Explained> Step(std::span<const TensorPair> pairs,
                              std::span<const SharedLevels* const> others = {});
  SharedLevels Levels() const;  // of the last step
  // Parameters whose gradient was zero except for rounding in some step so far.
  const std::unordered_set<std::string_view>& noise_driven() const { return noise_driven_; }

 private:
  struct Parameter {
    double distance = 0;   // relative
    double began = 0;      // the distance that the step began with
    double reach = 0;      // the largest of any rank: what an output may inherit
    bool updated = false;  // by an optimizer whose updates are recorded
    double l2 = 0;         // the larger one
    std::uint64_t numel = 0;
    std::vector<double> sketch_a, sketch_b;
  };
  struct State {
    double distance = 0, l2 = 0;
  };
  struct Gradient {  // of a module's outputs
    double distance = 0, l2 = 0, l1 = 0, numel = 0;
  };
  struct ParameterGradient {
    double distance = 0, l2 = 0;
    double level = 0;           // what this rank gives reason to expect
    bool noise_driven = false;  // zero except for rounding
  };
  // A module that ran before and may be an input.
  struct Child {
    std::string_view module;
    double distance = 0, unit = 0;
    double inherited =
        0;  // by all but its direct successor: without what only a noise-driven bias has added
    double most =
        0;  // largest `inherited` inside the module; a list of modules has no output itself
    bool own = false;   // its own output
    bool kink = false;  // HasKink() of its class
    std::uint64_t numel = 0;
    // Another output of the same call: whoever reads one may have read either.
    void Join(const Child& other) {
      distance = std::max(distance, other.distance);
      unit = std::max(unit, other.unit);
      inherited = std::max(inherited, other.inherited);
    }
  };
  // The largest distance among inputs, and their coarsest roundoff.
  struct Level {
    double distance = 0, unit = 0;
    double inherited = 0;  // without what only noise-driven biases have added
    void Add(double other) {
      distance = std::max(distance, other);
      inherited = std::max(inherited, other);
    }
    void Add(const Child& child, bool successor = true) {
      distance = std::max(distance, successor ? child.distance : child.inherited);
      inherited = std::max(inherited, child.inherited);
      unit = std::max(unit, child.unit);
    }
  };
  // The newest output of each module directly in a module; constant cost, however many there are.
  class Scope {
   public:
    const std::list<Child>& children() const { return children_; }  // newest last
    const Child* Find(std::string_view module) const;
    void Put(const Child& child);  // as the newest, in place of an older one of the same module
    double Largest() const;        // `inherited`, or `most` of what has no output itself

   private:
    std::list<Child> children_;
    std::unordered_map<std::string_view, std::list<Child>::iterator> by_module_;
    mutable std::optional<double> largest_;  // since the last Put
  };
  struct Pass {  // forward, of one micro-batch and mode
    std::unordered_map<std::string_view, Scope> scopes;
  };

  void BeginStep(std::span<const TensorPair> pairs, std::span<const SharedLevels* const> others);
  void Begin(std::string_view name, Parameter& parameter) const;
  double OfOthers(SharedLevels::OfParameters SharedLevels::*levels, std::string_view name) const;
  void NoteState(const TensorPair& pair);
  void Explain(const TensorPair& pair, Explained& to);
  double ExplainForward(const TensorPair& pair, Explained& to);
  double ExplainBuffer(const TensorPair& pair, const Pass& pass, double level, Explained& to);
  double ExplainBackward(const TensorPair& pair, Explained& to);
  double ExplainGradient(const TensorPair& pair, Explained& to);
  double ExplainState(const TensorPair& pair);
  double ExplainUpdate(const TensorPair& pair, Explained& to);
  bool IsOrthogonal(const TensorPair& pair) const;
  Level OfInputs(const Pass& pass, std::string_view module) const;
  static double OfSiblings(const Pass& pass, std::string_view module);
  double OfOwnParameters(std::string_view module, const TensorPair& pair) const;
  double OfMatrices(std::string_view module) const;
  double OfAll(std::string_view module) const;
  double ReachOf(std::string_view name) const;
  double OfTrained() const;
  double OfOutputs() const;
  Level OfBackward() const;
  double OfParameters(double distance) const;
  double Flipped(const TensorPair& pair) const;
  double OfMask(const TensorPair& pair, bool behind_kink) const;
  double OfKernel(const TensorPair& pair, double unit) const;
  void NoteOutput(Pass& pass, std::string_view module, const Child& output);
  void NoteParameter(const TensorPair& pair);
  void NoteTrained(std::string_view name, const Parameter& parameter);

  const RecordedMethods methods_;
  // Carried from step to step.
  SumLengths lengths_;
  RunningMeans means_;
  std::unordered_map<std::string_view, Parameter> parameters_;
  std::unordered_map<std::string_view, std::vector<std::string_view>> parameters_of_;  // by module
  std::map<std::pair<std::string_view, std::string_view>, State> states_;  // by name and path
  std::unordered_set<std::string_view> fragile_;                           // modules
  std::unordered_set<std::string_view>
      normalised_;  // parameters whose update is divided by its own size
  std::unordered_set<std::string_view> noise_driven_;  // parameters
  // The current step.
  std::span<const SharedLevels* const> others_;  // while it is explained
  std::string_view root_;                        // the outermost module's name
  bool evaluates_ = false;                   // the pair that is explained belongs to an evaluation
  double trained_ = 0, trained_biases_ = 0;  // the largest reach of parameters with updates
  double buffers_before_ = 0, buffers_ = 0;  // the largest distance of a buffer: last step, now
  double batch_ = 0;
  std::map<std::pair<std::uint32_t, Mode>, Pass> passes_;
  std::unordered_map<std::string_view, double> inputs_level_, outputs_;  // of modules
  std::unordered_map<std::string_view, double>
      of_terms_;  // of modules: that their parameters' gradients inherit
  std::unordered_map<std::string_view, Gradient> grad_outputs_;
  std::map<std::uint32_t, std::vector<Child>>
      backward_;  // by micro-batch, in the order of execution
  std::unordered_map<std::string_view, ParameterGradient> gradients_;
  double updated_ =
      0;  // distance of updated weights: a loss logged after the updates may depend on them
  Child last_output_;                                  // the outputs of the last call
  const TensorKey* last_key_ = nullptr;                // of one of them
  double largest_forward_ = 0, coarsest_forward_ = 0;  // of outputs in training, as inherited
  double largest_backward_ = 0, coarsest_backward_ = 0;
};

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_VERDICT_EXPLAIN_H_
