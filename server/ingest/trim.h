// Removes the part of a batch that is already stored.
#ifndef STATCOLLECT_SERVER_INGEST_TRIM_H_
#define STATCOLLECT_SERVER_INGEST_TRIM_H_

#include <cstdint>

#include "common/records.h"

namespace statcollect {

// Removes the first `count` records in the batch's order (stats, scalars, events, ...) and advances
// first_seq. Definitions stay. Precondition: count <= batch->records().
void TrimFront(RecordBatch* batch, std::uint64_t count);

}  // namespace statcollect

#endif  // STATCOLLECT_SERVER_INGEST_TRIM_H_
