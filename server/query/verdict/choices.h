// Outputs of integers, such as the experts that a router has chosen for each token, and what depends on them.
#ifndef STATCOLLECT_SERVER_QUERY_VERDICT_CHOICES_H_
#define STATCOLLECT_SERVER_QUERY_VERDICT_CHOICES_H_

#include <cstdint>
#include <map>
#include <string_view>
#include <utility>

#include "common/records.h"

namespace statcollect::query {

struct TensorPair;

// Whether it is an output of integers in both runs.
bool IsChoice(const TensorPair& pair);

// The relative distance of a choice if rounding decides between values that are about equally good: `level` is the
// distance of what it was computed from. 0: too little to move an element.
double MovedByRounding(const TensorPair& choice, double level);

// By how much the tensors differ whatever the order of their rows: by their norms.
double DistanceOfNorms(const TensorPair& pair);

// The choices of a step that differ. What the modules beside a router compute of the tokens that were sent to them has its
// rows at other places as soon as one token goes elsewhere. Names are borrowed.
class Choices {
 public:
  void Clear() { moved_.clear(); }
  void Note(const TensorPair& choice);
  // What moved choices do to an output or its gradient.
  struct Effect {
    double distance = 0;  // the choices' largest; 0: none differs
    // Its rows are not those that were chosen for, but those that were sent there.
    bool in_other_rows = false;
  };
  // Of the choices that were made in a module around it, in its micro-batch and mode; not in the model as a whole.
  Effect On(const TensorPair& pair) const;
  // The largest distance of those around a parameter, of all micro-batches in training.
  double AroundParameter(std::string_view name) const;

 private:
  using Place = std::pair<std::uint32_t, Mode>;  // micro-batch, mode
  struct Moved {
    double distance = 0;
    std::int64_t rows = 0;
  };
  std::map<std::pair<Place, std::string_view>, Moved> moved_;
};

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_VERDICT_CHOICES_H_
