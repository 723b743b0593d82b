// Which results of an optimizer are not linear in the gradient, whatever its state is called. Sketches are
// linear: the sketch of a combination of tensors is that combination of their sketches.
#ifndef STATCOLLECT_SERVER_QUERY_VERDICT_LINEARITY_H_
#define STATCOLLECT_SERVER_QUERY_VERDICT_LINEARITY_H_

#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

namespace statcollect::query {

struct TensorPair;
class SketchSpan;
enum class Linear : std::uint8_t { kUnknown, kYes, kNo };

// A state is linear if its change is a combination of its old value, the gradient and the weight, as a momentum
// is. An update is linear if it is a combination of the gradient, the weight and those states that are linear.
// Steps must ascend. Not thread-safe. Cost: about 1 us a parameter; memory: two sketches for each weight and
// state of the parameters that are looked at.
class Linearity {
 public:
  // `known`: parameters whose update is not linear by the names of their states; of these, only states of
  // other names are looked at. Names must outlive this.
  void Step(std::span<const TensorPair> pairs, const std::unordered_set<std::string_view>& known);

  bool any_nonlinear() const { return any_; }  // update in some step so far
  // Of the newest step, in both runs. False if the sketches do not show it.
  bool UpdateIsNonlinear(std::string_view parameter) const { return updates_.contains(parameter); }
  // How much of a state the newest step changed by more than a linear combination, relative to the state's
  // norm; 0 if it is linear or the sketches do not show it.
  double NonlinearChange(std::string_view parameter, std::string_view path) const {
    const auto found = states_.find({parameter, path});
    return found == states_.end() ? 0 : found->second;
  }
  // States of the newest step that are not linear and have no negative element: means of squares, as a rule.
  const std::vector<const TensorPair*>& squares() const { return squares_; }

 private:
  using Sketches = std::pair<std::vector<double>, std::vector<double>>;  // of A, of B
  struct Parameter {
    const TensorPair *gradient = nullptr, *loaded = nullptr, *weight = nullptr;
    std::vector<const TensorPair*> states;
    bool updated_twice = false;
  };

  static std::unordered_map<std::string_view, Parameter> Group(
      std::span<const TensorPair> pairs, const std::unordered_set<std::string_view>& known);
  bool CanJudge(std::string_view name, const Parameter& parameter) const;
  void JudgeStates(std::string_view name, const Parameter& parameter, SketchSpan (&spans)[2]);
  Linear JudgeUpdate(std::string_view name, const Parameter& parameter, const SketchSpan (&spans)[2]) const;
  void Remember(std::string_view name, const Parameter& parameter);

  std::unordered_map<std::string_view, Sketches> weights_before_;
  std::map<std::pair<std::string_view, std::string_view>, Sketches> states_before_;
  bool any_ = false;  // update was nonlinear in some step
  std::set<std::string_view> updates_;
  std::map<std::pair<std::string_view, std::string_view>, double> states_;  // share that changed
  std::vector<const TensorPair*> squares_;
};

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_VERDICT_LINEARITY_H_
