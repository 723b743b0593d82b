// Store in a ClickHouse, for any number of collectors at once. docs/clickhouse.md says for whom,
// and what differs from the embedded store.
#ifndef STATCOLLECT_SERVER_STORE_CLICKHOUSE_CLICKHOUSE_STORE_H_
#define STATCOLLECT_SERVER_STORE_CLICKHOUSE_CLICKHOUSE_STORE_H_

#include <memory>
#include <string>
#include <vector>

#include "common/status.h"
#include "server/store/clickhouse/attempts.h"
#include "server/store/clickhouse/dsn.h"
#include "server/store/clickhouse/engine.h"
#include "server/store/clickhouse/shard_place.h"
#include "server/store/store.h"

namespace statcollect {

// A store over one set of tables, and what a store of several shards needs of each.
class ClickHouseShard : public Store {
 public:
  virtual Engine& engine() = 0;
  virtual AttemptTable& attempts() = 0;
  // As RecordWriter::PutEvents, for an attempt that exists although this shard does not know it.
  virtual Status PutEventsOf(AttemptId attempt, std::span<const CollectorEvent> events) = 0;
};

// Creates the database and its tables if they are missing. kInvalidArgument, kUnavailable,
// kPermissionDenied or kFailedPrecondition say what is wrong with the address, the engine, the user
// or the tables.
Result<std::unique_ptr<Store>> OpenClickHouseStore(const std::string& dsn,
                                                   const EngineOptions& options = {});

}  // namespace statcollect

#endif  // STATCOLLECT_SERVER_STORE_CLICKHOUSE_CLICKHOUSE_STORE_H_
