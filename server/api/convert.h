// Converts request messages to structs and structs to answers, for what does not fill its message
// itself (leaf_queries.h). The structs mirror the messages (server/query/reports.h), so this copies
// field by field; input from clients is validated here. In convert/: one file per message family.
#ifndef STATCOLLECT_SERVER_API_CONVERT_H_
#define STATCOLLECT_SERVER_API_CONVERT_H_

#include <string>

#include "common/capture_spec.h"
#include "common/status.h"
#include "server/access/audit_log.h"
#include "server/control/control.h"
#include "server/query/captures/captures.h"
#include "server/query/ranks/ranks.h"
#include "server/query/records/records_reader.h"
#include "server/query/reports.h"
#include "statcollect/v1/admin.pb.h"
#include "statcollect/v1/query.pb.h"

namespace statcollect::api {

// kInvalidArgument: invalid run or activation names, kinds that this build does not know, more
// ranks than a run can have, a tolerance that is not a number.
Result<query::DiffRequest> FromWire(const v1::DiffRequest& request);
Result<query::ReadCaptureRequest> FromWire(const v1::ReadCaptureRequest& request);
Result<CaptureSpec> FromWire(const v1::RequestCaptureRequest& request);
Result<query::RecordsRequest> FromWire(const v1::ReadRecordsRequest& request);
Result<query::RanksRequest> FromWire(const v1::CheckRanksRequest& request);

void ToWire(const query::Progress& progress, v1::Progress& out);
void ToWire(const query::DiffReport& report, v1::DiffReport& out);
void ToWire(const query::RanksReport& report, v1::RanksReport& out);
void ToWire(const query::RecordsPart& part, v1::ReadRecordsResponse& out);
// For a caller of `project`.
void ToWire(const CollectorStatus& status, const std::string& project, v1::GetStatusResponse& out);
void ToWire(const access::AuditFound& found, v1::ListAuditResponse& out);

}  // namespace statcollect::api

#endif  // STATCOLLECT_SERVER_API_CONVERT_H_
