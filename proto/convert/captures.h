// Chunks of raw values.
#ifndef STATCOLLECT_PROTO_CONVERT_CAPTURES_H_
#define STATCOLLECT_PROTO_CONVERT_CAPTURES_H_

#include "common/records.h"
#include "common/status.h"
#include "proto/convert/layout_table.h"

namespace statcollect::convert {

void CapturesToWire(const RecordBatch& batch, v1::Records* wire);
// Chunks of any tensor that the session has a layout for, within its size and the limits.
Status CapturesFromWire(const v1::Records& wire, const LayoutTable& layouts, RecordBatch* batch);

}  // namespace statcollect::convert

#endif  // STATCOLLECT_PROTO_CONVERT_CAPTURES_H_
