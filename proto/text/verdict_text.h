// The answer of a diff in words: verdict, where and why, what to do next.
#ifndef STATCOLLECT_PROTO_TEXT_VERDICT_TEXT_H_
#define STATCOLLECT_PROTO_TEXT_VERDICT_TEXT_H_

#include "statcollect/v1/query.pb.h"

namespace statcollect {

// Only the verdict and its sentence.
v1::DiffText VerdictText(const v1::DiffReport& report);
// Also what to do next.
v1::DiffText TextOf(const v1::DiffReport& report);

}  // namespace statcollect

#endif  // STATCOLLECT_PROTO_TEXT_VERDICT_TEXT_H_
