// Parts of answers that several messages share.
#ifndef STATCOLLECT_SERVER_API_CONVERT_PARTS_H_
#define STATCOLLECT_SERVER_API_CONVERT_PARTS_H_

#include "server/query/answers/message_parts.h"
#include "server/query/answers/runs.h"
#include "server/query/reports.h"
#include "statcollect/v1/query.pb.h"

namespace statcollect::api {

using query::CheckStepsFromWire;
using query::Copy;
using query::Invalid;
using query::KindFromWire;
using query::KindsFromWire;
using query::RanksFromWire;
using query::RunsFromWire;
using query::SelectionFromWire;
using query::ToWire;

void ToWire(const query::Compared& compared, v1::Compared& out);

}  // namespace statcollect::api

#endif  // STATCOLLECT_SERVER_API_CONVERT_PARTS_H_
