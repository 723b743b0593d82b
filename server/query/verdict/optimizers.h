// What an optimizer makes of a gradient, as its state and its recorded class tell.
#ifndef STATCOLLECT_SERVER_QUERY_VERDICT_OPTIMIZERS_H_
#define STATCOLLECT_SERVER_QUERY_VERDICT_OPTIMIZERS_H_

#include <cstdint>
#include <string_view>

#include "server/query/settings/module_keys.h"

namespace statcollect::query {

// By the name of a parameter's state, such as "exp_avg_sq".
enum class StateRole : std::uint8_t {
  kOther,        // its update is linear in the gradient, as far as this state tells
  kSign,         // the update takes the sign of the gradient (Lion, Rprop), unless there is a kSecondMoment
  kSecondMoment  // the update is divided by the gradient's own size (Adam, RMSprop, Adagrad, Adafactor ...)
};
StateRole RoleOf(std::string_view state);

// Whether the state is a mean or a sum of squares, one for each element.
bool IsSquares(std::string_view state);

// Whether both runs recorded an optimizer that makes the update of a matrix orthogonal (Muon).
bool UpdatesAreOrthogonal(const Config& a, const Config& b);

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_VERDICT_OPTIMIZERS_H_
