// Everything that is recorded beside tensors: scalars, events, memory, densities, settings, ends of
// steps.
#ifndef STATCOLLECT_PROTO_CONVERT_SIDE_RECORDS_H_
#define STATCOLLECT_PROTO_CONVERT_SIDE_RECORDS_H_

#include "common/records.h"
#include "common/status.h"
#include "proto/convert.h"

namespace statcollect::convert {

void SideRecordsToWire(const RecordBatch& batch, v1::Records* wire);
Status SideRecordsFromWire(const v1::Records& wire, RecordBatch* batch);

}  // namespace statcollect::convert

#endif  // STATCOLLECT_PROTO_CONVERT_SIDE_RECORDS_H_
