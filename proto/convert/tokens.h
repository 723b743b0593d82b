// Rows of tokens.
#ifndef STATCOLLECT_PROTO_CONVERT_TOKENS_H_
#define STATCOLLECT_PROTO_CONVERT_TOKENS_H_

#include "common/records.h"
#include "common/status.h"
#include "statcollect/v1/stats.pb.h"

namespace statcollect::convert {

void TokensToWire(const RecordBatch& batch, v1::Records* wire);
// Checks name, dtype, and that all columns are of one length within the limit.
Status TokensFromWire(const v1::Records& wire, RecordBatch* batch);

}  // namespace statcollect::convert

#endif  // STATCOLLECT_PROTO_CONVERT_TOKENS_H_
