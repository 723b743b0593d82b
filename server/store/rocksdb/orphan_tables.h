// Tables that the MANIFEST does not name although they hold records that nothing else holds.
#ifndef STATCOLLECT_SERVER_STORE_ROCKSDB_ORPHAN_TABLES_H_
#define STATCOLLECT_SERVER_STORE_ROCKSDB_ORPHAN_TABLES_H_

#include <string>
#include <vector>

#include <rocksdb/env.h>

#include "common/status.h"
#include "server/store/rocksdb/database.h"

namespace statcollect {

// Their names. A crash leaves tables without a name, too: what was being written, or was about to
// be deleted. All that is in those is in the logs or in other tables as well. A table of which
// records are missing, of an attempt that was not removed, is one that the MANIFEST has lost.
// `database` was opened from the directory for reading, with its logs.
Result<std::vector<std::string>> FindOrphanTables(const Database& database, rocksdb::Env& env,
                                                  const std::string& directory);

}  // namespace statcollect

#endif  // STATCOLLECT_SERVER_STORE_ROCKSDB_ORPHAN_TABLES_H_
