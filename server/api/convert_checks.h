// Like convert.h, for the queries about a statistic (stat_map), settings (config) and ranks.
#ifndef STATCOLLECT_SERVER_API_CONVERT_CHECKS_H_
#define STATCOLLECT_SERVER_API_CONVERT_CHECKS_H_

#include "common/status.h"
#include "server/query/compare/propose_map.h"
#include "server/query/diff/stat_map.h"
#include "server/query/ranks/ranks.h"
#include "server/query/settings/config_report.h"
#include "statcollect/v1/query.pb.h"

namespace statcollect::api {

Result<query::StatMapRequest> FromWire(const v1::GetStatMapRequest& request);
Result<query::ProposeMapRequest> FromWire(const v1::ProposeMapRequest& request);
Result<query::ConfigRequest> FromWire(const v1::CompareConfigRequest& request);
Result<query::RanksRequest> FromWire(const v1::CheckRanksRequest& request);

void ToWire(const query::StatMap& map, v1::GetStatMapResponse& out);
void ToWire(const query::ProposeMapReport& report, v1::ProposeMapResponse& out);
void ToWire(const query::ConfigReport& report, v1::ConfigReport& out);
void ToWire(const query::RanksReport& report, v1::RanksReport& out);

}  // namespace statcollect::api

#endif  // STATCOLLECT_SERVER_API_CONVERT_CHECKS_H_
