// Models whose weights change without an optimizer that is watched, such as a moving average of trained weights.
#ifndef STATCOLLECT_SERVER_QUERY_VERDICT_SHADOWS_H_
#define STATCOLLECT_SERVER_QUERY_VERDICT_SHADOWS_H_

#include <span>
#include <string_view>
#include <unordered_map>

namespace statcollect::query {

struct TensorPair;

// Weights are recorded as they are loaded and after each update. Those of a model that no optimizer updates are not
// recorded again: they may be constant, or follow the weights of a model that is trained beside it. Steps must ascend.
// Not thread-safe.
class Shadows {
 public:
  // Names must outlive this.
  void Step(std::span<const TensorPair> pairs);
  // An update left weights that differ by so much.
  void NoteUpdate(double distance);
  // How far apart the weights of the module's model may be without a record of it; 0 if its weights are recorded.
  double Of(std::string_view module) const;

 private:
  std::unordered_map<std::string_view, bool> updated_;  // by the name under which a model is watched
  bool any_ = false;                                    // model was updated
  double largest_ = 0;                                  // difference of updated weights so far
};

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_VERDICT_SHADOWS_H_
