// What records take in memory, about: with their texts and the nodes of their containers.
#ifndef STATCOLLECT_SERVER_INGEST_DECODED_BYTES_H_
#define STATCOLLECT_SERVER_INGEST_DECODED_BYTES_H_

#include <cstddef>

#include "common/records.h"

namespace statcollect {

std::size_t DecodedBytes(const RecordBatch& batch);

// With the place in the session's index.
std::size_t DecodedBytes(const TensorDef& def);
std::size_t DecodedBytes(const Layout& layout);

}  // namespace statcollect

#endif  // STATCOLLECT_SERVER_INGEST_DECODED_BYTES_H_
