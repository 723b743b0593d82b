// What an optimizer does with a gradient, as far as its state and recorded class show.
#ifndef STATCOLLECT_SERVER_QUERY_VERDICT_OPTIMIZERS_H_
#define STATCOLLECT_SERVER_QUERY_VERDICT_OPTIMIZERS_H_

#include <string_view>

#include "server/query/settings/module_keys.h"

namespace statcollect::query {

// Whether a parameter with such a state ("exp_avg_sq") has its update divided by the gradient's own
// size (Adam, RMSprop, Adagrad, Adafactor ...) or made of its signs (Lion, Rprop).
bool DividesOrTakesSigns(std::string_view state);

// Whether the state is a mean or a sum of squares, one for each element.
bool IsSquares(std::string_view state);

// Whether both runs recorded an optimizer that makes the update of a matrix orthogonal (Muon).
bool UpdatesAreOrthogonal(const Config& a, const Config& b);

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_VERDICT_OPTIMIZERS_H_
