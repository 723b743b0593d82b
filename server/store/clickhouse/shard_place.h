// Which tables hold which ranks: rank r lies in shard r % N, the catalogue in the first.
//
// Each database says which shard of how many it is, and of which store: a collector with other
// shards, or with the same in another order, would look for records where they are not.
#ifndef STATCOLLECT_SERVER_STORE_CLICKHOUSE_SHARD_PLACE_H_
#define STATCOLLECT_SERVER_STORE_CLICKHOUSE_SHARD_PLACE_H_

#include <vector>

#include "common/records.h"
#include "common/status.h"
#include "server/store/clickhouse/engine.h"

namespace statcollect {

// The shard that an engine's database has to be.
struct ShardPlace {
  std::size_t number = 1;                 // from 1
  std::vector<StoreIdentity> identities;  // of all shards, in their order
};

// Writes the place into a database that has none. kFailedPrecondition: it has another one, or holds
// records of a store without shards.
Status TakeShardPlace(Engine& engine, const ShardPlace& place);
// The same without writing: OK if there is none.
Status CheckShardPlace(Engine& engine, const ShardPlace& place);

}  // namespace statcollect

#endif  // STATCOLLECT_SERVER_STORE_CLICKHOUSE_SHARD_PLACE_H_
