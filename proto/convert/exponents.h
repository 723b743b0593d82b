// Counts of binary exponents.
#ifndef STATCOLLECT_PROTO_CONVERT_EXPONENTS_H_
#define STATCOLLECT_PROTO_CONVERT_EXPONENTS_H_

#include "common/records.h"
#include "common/status.h"
#include "proto/convert/layout_table.h"

namespace statcollect::convert {

void ExponentsToWire(const RecordBatch& batch, v1::Records* wire);
// Of any tensor that the session has a layout for; no more components than it has.
Status ExponentsFromWire(const v1::Records& wire, const LayoutTable& layouts, RecordBatch* batch);

}  // namespace statcollect::convert

#endif  // STATCOLLECT_PROTO_CONVERT_EXPONENTS_H_
