// The columns of tensor statistics, with sketches and samples.
#ifndef STATCOLLECT_PROTO_CONVERT_STATISTICS_H_
#define STATCOLLECT_PROTO_CONVERT_STATISTICS_H_

#include "common/records.h"
#include "common/status.h"
#include "proto/convert/layout_table.h"

namespace statcollect::convert {

void StatsToWire(const StatColumns& columns, const LayoutTable& layouts, v1::StatColumns* wire);
Status StatsFromWire(const v1::StatColumns& wire, const LayoutTable& layouts, StatColumns* out);

}  // namespace statcollect::convert

#endif  // STATCOLLECT_PROTO_CONVERT_STATISTICS_H_
