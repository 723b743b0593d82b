// What is stored of each attempt, and how much space it takes.
#ifndef STATCOLLECT_SERVER_STORE_ROCKSDB_CENSUS_H_
#define STATCOLLECT_SERVER_STORE_ROCKSDB_CENSUS_H_

#include <cstdint>
#include <span>
#include <vector>

#include "common/status.h"
#include "server/store/rocksdb/database.h"
#include "server/store/rocksdb/families.h"
#include "server/store/store.h"

namespace statcollect {

// As Store::Census. Thread-safe.
Result<std::vector<AttemptTally>> TakeCensus(const Database& database);

// About how many bytes each attempt takes in a family, in tables and, if asked for, in memory. Thread-safe.
Result<std::vector<std::uint64_t>> SizesOf(const Database& database, Family family,
                                           std::span<const AttemptId> attempts, bool memtables);

}  // namespace statcollect

#endif  // STATCOLLECT_SERVER_STORE_ROCKSDB_CENSUS_H_
