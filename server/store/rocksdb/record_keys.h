// Where the rows of a rank lie in RocksDB; server/store/key.h describes the keys.
#ifndef STATCOLLECT_SERVER_STORE_ROCKSDB_RECORD_KEYS_H_
#define STATCOLLECT_SERVER_STORE_ROCKSDB_RECORD_KEYS_H_

#include <cstdint>
#include <string>

#include "server/store/codec/batch_encoder.h"
#include "server/store/rocksdb/families.h"
#include "server/store/rocksdb/util.h"

namespace statcollect {

Family FamilyOf(RowFamily row);
std::string KeyOf(AttemptId attempt, std::uint32_t rank, const EncodedRow& row);
// The keys of a kind of record in these steps.
KeyRange RangeOf(RowFamily row, AttemptId attempt, std::uint32_t rank, StepBounds steps);

}  // namespace statcollect

#endif  // STATCOLLECT_SERVER_STORE_ROCKSDB_RECORD_KEYS_H_
