// Counts of binary exponents.
#ifndef STATCOLLECT_PROTO_CONVERT_EXPONENTS_H_
#define STATCOLLECT_PROTO_CONVERT_EXPONENTS_H_

#include "common/records.h"
#include "common/status.h"
#include "proto/convert/layout_table.h"

namespace statcollect::convert {

void ExponentsToWire(const RecordBatch& batch, v1::Records* wire);
// Checks that the session has the tensor's layout and that the counts do not exceed its components.
Status ExponentsFromWire(const v1::Records& wire, const LayoutTable& layouts, RecordBatch* batch);

}  // namespace statcollect::convert

#endif  // STATCOLLECT_PROTO_CONVERT_EXPONENTS_H_
