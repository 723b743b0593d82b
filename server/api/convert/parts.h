// Parts of questions and answers that several messages share.
#ifndef STATCOLLECT_SERVER_API_CONVERT_PARTS_H_
#define STATCOLLECT_SERVER_API_CONVERT_PARTS_H_

#include "server/query/answers/message_parts.h"
#include "server/query/answers/runs.h"

namespace statcollect::api {

using query::CheckMapSide;
using query::CheckTolerance;
using query::Copy;
using query::Invalid;
using query::KindFromWire;
using query::RunsFromWire;
using query::SelectionFromWire;
using query::ToWire;

}  // namespace statcollect::api

#endif  // STATCOLLECT_SERVER_API_CONVERT_PARTS_H_
