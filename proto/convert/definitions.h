// Activations and layouts, which the records of a batch and of later ones name by id.
#ifndef STATCOLLECT_PROTO_CONVERT_DEFINITIONS_H_
#define STATCOLLECT_PROTO_CONVERT_DEFINITIONS_H_

#include "common/records.h"
#include "common/status.h"
#include "proto/convert.h"

namespace statcollect::convert {

void DefinitionsToWire(const RecordBatch& batch, v1::Records* wire);
Status DefinitionsFromWire(const v1::Records& wire, KnownLayouts known, RecordBatch* batch);

}  // namespace statcollect::convert

#endif  // STATCOLLECT_PROTO_CONVERT_DEFINITIONS_H_
