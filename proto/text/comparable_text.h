// The list that heads a comparison: whether it is valid.
#ifndef STATCOLLECT_PROTO_TEXT_COMPARABLE_TEXT_H_
#define STATCOLLECT_PROTO_TEXT_COMPARABLE_TEXT_H_

#include <string>
#include <vector>

#include "statcollect/v1/query.pb.h"

namespace statcollect {

// One line of everything that holds, then one for each thing that does not: "! steps: none in
// both".
std::vector<std::string> ComparableLines(
    const google::protobuf::RepeatedPtrField<v1::PremiseCheck>& checks);

}  // namespace statcollect

#endif  // STATCOLLECT_PROTO_TEXT_COMPARABLE_TEXT_H_
