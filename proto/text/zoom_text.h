// What makes the difference in a zoomed call, in words.
#ifndef STATCOLLECT_PROTO_TEXT_ZOOM_TEXT_H_
#define STATCOLLECT_PROTO_TEXT_ZOOM_TEXT_H_

#include <string>
#include <vector>

#include "statcollect/v1/query.pb.h"

namespace statcollect {

// One line each, the verdict first; further lines are of the operators and their arguments. `a`,
// `b`: names of the runs.
std::vector<std::string> ZoomText(const v1::ZoomCall& call, const std::string& a,
                                  const std::string& b);

}  // namespace statcollect

#endif  // STATCOLLECT_PROTO_TEXT_ZOOM_TEXT_H_
