// The stored records of each attempt, and their size.
#ifndef STATCOLLECT_SERVER_STORE_ROCKSDB_CENSUS_H_
#define STATCOLLECT_SERVER_STORE_ROCKSDB_CENSUS_H_

#include <cstdint>
#include <span>
#include <vector>

#include "common/status.h"
#include "server/store/attempt.h"
#include "server/store/rocksdb/database.h"
#include "server/store/rocksdb/families.h"

namespace statcollect {

// Like Store::Census. Thread-safe.
Result<std::vector<AttemptTally>> TakeCensus(const Database& database);

// Approximate size of each attempt in a family, in tables and optionally in memory. Thread-safe.
Result<std::vector<std::uint64_t>> SizesOf(const Database& database, Family family,
                                           std::span<const AttemptId> attempts, bool memtables);

}  // namespace statcollect

#endif  // STATCOLLECT_SERVER_STORE_ROCKSDB_CENSUS_H_
